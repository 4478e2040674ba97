"""Measure, check and keep the launch configs that `tritonsnap.tuning` looks up."""
