"""A user-item-label file whose best possible AUC is known, and what simple models reach on it.

    python bench/compare/user_item.py user_item.csv --seed 1
    rowmill init user_item.csv && rowmill train user_item.toml

200,000 uniform pairs of 2,000 users and 1,000 items; the logit of a click is
-0.2 + N(0, 0.5) of the user + N(0, 0.5) of the item + the product of two vectors of four N(0, 0.8).
The last tenth is held out. Prints three AUC of the held-out rows: of the true probabilities (Bayes),
of a model with one number per user and item (biases), and of those with vectors of four besides
(factorisation), both fitted to the training rows by stochastic gradient descent. Needs nothing but
Python.
"""

import argparse
import json
import math
import random

USERS, ITEMS, PAIRS = 2_000, 1_000, 200_000
RANK = 4


def sigmoid(x):
    if x < 0.0:
        e = math.exp(x)
        return e / (1.0 + e)
    return 1.0 / (1.0 + math.exp(-x))


def auc(scores, labels):
    """Share of (click, no click) pairs in the right order, ties counted half."""
    order = sorted(range(len(scores)), key=scores.__getitem__)
    area, below, at = 0.0, 0, 0
    while at < len(order):
        end = at
        while end < len(order) and scores[order[end]] == scores[order[at]]:
            end += 1
        clicks = sum(labels[i] for i in order[at:end])
        others = end - at - clicks
        area += clicks * (below + others / 2.0)
        below += others
        at = end
    clicks = sum(labels)
    return area / (clicks * (len(labels) - clicks))


def generate(seed):
    draw = random.Random(seed)
    user = [draw.gauss(0.0, 0.5) for _ in range(USERS)]
    item = [draw.gauss(0.0, 0.5) for _ in range(ITEMS)]
    p = [[draw.gauss(0.0, 0.8) for _ in range(RANK)] for _ in range(USERS)]
    q = [[draw.gauss(0.0, 0.8) for _ in range(RANK)] for _ in range(ITEMS)]
    rows = []
    for _ in range(PAIRS):
        u, i = draw.randrange(USERS), draw.randrange(ITEMS)
        logit = -0.2 + user[u] + item[i] + sum(a * b for a, b in zip(p[u], q[i]))
        rows.append((u, i, int(draw.random() < sigmoid(logit)), logit))
    return rows


def fit(rows, rank, epochs, rate, decay, seed=0):
    """Logistic biases, and vectors of `rank`, by stochastic gradient descent; gives the scores."""
    draw = random.Random(seed)
    base, user, item = 0.0, [0.0] * USERS, [0.0] * ITEMS
    p = [[draw.gauss(0.0, 0.1) for _ in range(rank)] for _ in range(USERS)]
    q = [[draw.gauss(0.0, 0.1) for _ in range(rank)] for _ in range(ITEMS)]
    order = list(range(len(rows)))
    dims = range(rank)
    for epoch in range(epochs):
        draw.shuffle(order)
        step = rate * (1.0 - epoch / epochs)
        for at in order:
            u, i, label, _ = rows[at]
            pu, qi = p[u], q[i]
            logit = base + user[u] + item[i]
            for d in dims:
                logit += pu[d] * qi[d]
            error = label - sigmoid(logit)
            base += step * error
            user[u] += step * (error - decay * user[u])
            item[i] += step * (error - decay * item[i])
            for d in dims:
                a, b = pu[d], qi[d]
                pu[d] += step * (error * b - decay * a)
                qi[d] += step * (error * a - decay * b)

    def score(u, i):
        return base + user[u] + item[i] + sum(p[u][d] * q[i][d] for d in dims)

    return score


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", help="the file to write")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rows = generate(args.seed)
    with open(args.out, "w", encoding="ascii") as out:
        out.write("user,item,label\n")
        out.writelines(f"{u},{i},{label}\n" for u, i, label, _ in rows)
    cut = PAIRS - PAIRS // 10
    train, held_out = rows[:cut], rows[cut:]
    labels = [label for _, _, label, _ in held_out]
    biases = fit(train, 0, 8, 0.05, 0.01)
    factors = fit(train, RANK, 24, 0.06, 0.03)
    of = lambda score: auc([score(u, i) for u, i, _, _ in held_out], labels)
    print(json.dumps({
        "seed": args.seed,
        "bayes_auc": round(auc([logit for _, _, _, logit in held_out], labels), 5),
        "biases_auc": round(of(biases), 5),
        "factorisation_auc": round(of(factors), 5),
    }))


if __name__ == "__main__":
    main()
