"""How commands end: their status, and what they print, at Ctrl-C and before a closed pipe."""

import subprocess
import sys

import pytest

from tritonsnap.console import run_command


@pytest.mark.parametrize(("result", "status"), [(None, 0), (0, 0), (3, 3)])
def test_a_status_is_passed_on(result, status):
    assert run_command(lambda: result) == status


def test_ctrl_c_is_told_without_a_traceback(capsys):
    def run():
        raise KeyboardInterrupt

    assert run_command(run, "interrupted after epoch 3") == 130
    assert capsys.readouterr().err == "interrupted after epoch 3\n"


def test_a_reader_that_stops_early_is_no_error():
    command = [sys.executable, "-m", "tritonsnap", "explain", "--hidden", "4"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
