"""The sigmoid and SupRank's step by their definitions, in Python's floats."""

import math


def sigmoid(gap, tau=0.01):
    return 1 / (1 + math.exp(-gap / tau)) if gap >= 0 else math.exp(gap / tau) / (1 + math.exp(gap / tau))


def h_minus(gap, tau=0.01, rho=100.0, delta=0.05):
    if gap < 0:
        return sigmoid(gap, tau)
    if gap <= delta:
        return sigmoid(gap, tau) + 0.5
    return rho * (gap - delta) + sigmoid(delta, tau) + 0.5
