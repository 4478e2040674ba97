"""Data streams to train on: deterministic, and resumable from a small state."""

from tritonsnap.online.tasks.copy import CopyTask
from tritonsnap.online.tasks.stream import Batch, StreamState, Task
from tritonsnap.online.tasks.text import TextTask, reference_text

__all__ = ["Batch", "CopyTask", "StreamState", "Task", "TextTask", "reference_text"]
