"""Kolmogorov-Arnold networks of piecewise-linear functions, trained by concurrent workers."""

from tritonsnap.kan.functions import Functions, predict
from tritonsnap.kan.metrics import History, Report, pearson, root_mean_square_error
from tritonsnap.kan.model import KAN
from tritonsnap.kan.step import Change, Rule, train_step
from tritonsnap.kan.trainer import Trainer

__all__ = [
    "KAN",
    "Change",
    "Functions",
    "History",
    "Report",
    "Rule",
    "Trainer",
    "pearson",
    "predict",
    "root_mean_square_error",
    "train_step",
]
