"""An independent reading of Criteo's TSV, for the tests of crates/data.

usage: criteo_reading.py FILE[.gz] THRESHOLD

Prints one JSON object per row: `label`, `dlrm` and `torchrec` (the 13 dense values of the two published
preparations), `raw` (the 26 categories as integers, a missing one as 0) and `exact` (ids 2, 3, … by first
appearance among categories seen THRESHOLD times or more; 0 missing, 1 rare). Standard library only.
"""
import collections
import gzip
import json
import math
import sys

path, threshold = sys.argv[1], int(sys.argv[2])
opened = gzip.open(path, "rt") if path.endswith(".gz") else open(path)
with opened as file:
    rows = [line.rstrip("\n").split("\t") for line in file]

counts = [collections.Counter() for _ in range(26)]
for row in rows:
    assert len(row) == 40, len(row)
    for column, text in enumerate(row[14:]):
        if text:
            counts[column][text] += 1
# A Counter keeps the order of first insertion.
ids = [
    {text: 2 + i for i, text in enumerate(t for t in counter if counter[t] >= threshold)}
    for counter in counts
]

for row in rows:
    dense = [int(text) if text else 0 for text in row[1:14]]
    categories = row[14:]
    print(json.dumps({
        "label": int(row[0]),
        "dlrm": [math.log(max(x, 0) + 1) for x in dense],
        "torchrec": [math.log(x + 3) for x in dense],
        "raw": [int(text, 16) if text else 0 for text in categories],
        "exact": [ids[c].get(text, 1) if text else 0 for c, text in enumerate(categories)],
    }))
