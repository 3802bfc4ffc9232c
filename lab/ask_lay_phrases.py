"""Ask the model of ``extremax demo`` phrases of laypersons: python lab/ask_lay_phrases.py demo/model

lay-phrases.tsv has the three-character categories of ICD-10 that are right for each phrase, written down
before any answer was seen. Printed for each part: phrases, right category first, among the best five, and
wrong with a probability above 0.4.
"""

import sys
from pathlib import Path

import numpy as np

from extremax import load_model

clf = load_model(sys.argv[1])
lines = Path(__file__).with_name("lay-phrases.tsv").read_text(encoding="utf-8").splitlines()
rows = [line.split("\t") for line in lines]
labels, log_prob = clf.predict_topk([phrase for _, phrase, _ in rows], 5)
for part in dict.fromkeys(row[0] for row in rows):
    figures = []
    for (of, _, right), best, value in zip(rows, labels, log_prob, strict=True):
        if of == part:
            hits = [code[:3] in right.split() for code in best]
            figures.append((1, hits[0], any(hits), not hits[0] and np.exp(value[0]) > 0.4))
    sys.stdout.write(f"{part}: {np.sum(figures, axis=0, dtype=int)}\n")
