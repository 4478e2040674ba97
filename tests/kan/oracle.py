"""The definition of the model and its rule as plain loops over records, functions and knots."""

import numpy as np


def evaluate(values, low, high, x):
    """A piecewise-linear function's value, slope, and hat vector at x, all in float64."""
    knots = len(values)
    delta = (high - low) / (knots - 1)
    r = (x - low) / delta
    hat = np.zeros(knots)
    if r <= 0:
        hat[0] = 1
    elif r >= knots - 1:
        hat[-1] = 1
    i = int(min(max(np.floor(r), 0), knots - 2))
    if 0 < r < knots - 1:
        hat[i], hat[i + 1] = 1 - (r - i), r - i
    inside = 0 <= r <= knots - 1
    return hat @ values, (values[i + 1] - values[i]) / delta if inside else 0.0, hat


def jacobian(functions, x, convention):
    """Outputs [targets] of one record and their dense gradients by inner and outer values."""
    inner, outer = np.asarray(functions.inner, float), np.asarray(functions.outer, float)
    inputs, _, addends = inner.shape
    targets = outer.shape[0]
    s1, s2 = (1 / inputs, 1 / addends) if convention == "mean" else (1.0, 1.0)
    by_inner = np.zeros((targets, *inner.shape))
    by_outer = np.zeros((targets, *outer.shape))
    outputs = np.zeros(targets)
    for k in range(addends):
        u, hats = 0.0, []
        for j in range(inputs):
            value, _, hat = evaluate(
                inner[j, :, k], functions.input_low[j], functions.input_high[j], x[j]
            )
            u += s1 * value
            hats.append(hat)
        for t in range(targets):
            value, slope, hat = evaluate(
                outer[t, :, k], functions.sum_low[k], functions.sum_high[k], u
            )
            outputs[t] += s2 * value
            by_outer[t, t, :, k] = s2 * hat
            for j in range(inputs):
                by_inner[t, j, :, k] = s1 * s2 * slope * hats[j]
    return outputs, by_inner, by_outer
