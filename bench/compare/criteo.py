"""Rows of Criteo's format, prepared as rowmill's configuration `criteo-dlrm` prepares them.

Knows nothing of models.
"""
import itertools
import math

ROWS_MOST = 4096


def prepared(path):
    """The dense values and the ids of each row, of so many rows at most."""
    with open(path) as file:
        for line in itertools.islice(file, ROWS_MOST):
            fields = line.rstrip("\n").split("\t")
            dense = [math.log(max(int(text or 0), 0) + 1) for text in fields[1:14]]
            yield dense, [int(text or "0", 16) for text in fields[14:]]
