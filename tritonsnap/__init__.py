"""Train networks online, forward in time, with sparse Jacobians at kernel speed."""

__version__ = "0.1.0"
