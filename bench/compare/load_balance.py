#!/usr/bin/env python3
"""Predicted and measured load of two ranks under several plans of one model: docs/load-balancing.md.

    rowmill predict learn --threads 1 --output cpu
    python bench/compare/load_balance.py --rowmill rowmill --learned cpu --svg docs/load-balancing.svg

A rank is priced as a job of its own, on one rank: its tiles are the tables, and it looks up the ids of the whole batch. Ranks are
measured by the lookups and row updates in the traces of two ranks of one thread each. The plans take turns.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

import machine
import records

BATCH, RANKS, ROUNDS, DIM = 1024, 2, 3, 32
# Rows and ids per bag of each table: the table with the most rows is not the one with the most ids.
TABLES = [(400_000, 40), (300_000, 5), (200_000, 20), (100_000, 30), (50_000, 1), (20_000, 10), (10_000, 60), (5_000, 4)]
CONFIG = """
[model]
name = "balance"
dense_features = 4
bottom = [16, 8]
top = [16, 1]
interaction = {{ kind = "cat" }}
loss = "bce_with_logits"
tables = [{tables}]
[optimizer]
sparse = {{ kind = "rowwise_adagrad", learning_rate = 0.05 }}
dense = {{ kind = "sgd", learning_rate = 0.05 }}
[training]
batch_size = {batch}
[data]
format = "csv"
label = {{ column = "label" }}
dense = [{{ column = "d{{0..3}}" }}]
categorical = [{{ column = "t{{0..{last}}}", kind = "integer", separator = "|" }}]
[synthetic]
ids = {{ kind = "uniform" }}
bag_sizes = {{ {bags} }}
"""


def config(tables):
    """The configuration of a model with tables of so many rows, columns and ids per bag."""
    named = ", ".join(f'{{ name = "t{i}", rows = {rows}, dim = {dim} }}' for i, (rows, dim, _) in enumerate(tables))
    bags = ", ".join(f"t{i} = {ids}" for i, (_, _, ids) in enumerate(tables))
    return CONFIG.format(tables=named, bags=bags, batch=BATCH, last=len(tables) - 1)


def tile(table, rows, rank):
    return {"table": table, "rows": {"start": rows[0], "end": rows[1]}, "columns": {"start": 0, "end": DIM}, "rank": rank}


def whole(ranks):
    return [tile(table, (0, TABLES[table][0]), rank) for table, rank in enumerate(ranks)]


def greedy(costs):
    """The rank of each table: the most expensive first, to the rank with the least cost so far."""
    ranks, sums = [0] * len(costs), [0] * RANKS
    for table in sorted(range(len(costs)), key=lambda table: -costs[table]):
        ranks[table] = sums.index(min(sums))
        sums[ranks[table]] += costs[table]
    return ranks


def differencing(costs):
    """The rank of each table by largest differencing (Karmarkar and Karp) for two ranks."""
    parts = [(cost, [table], []) for table, cost in enumerate(costs)]
    while len(parts) > 1:
        parts.sort(key=lambda part: part[0])
        (b, more_b, less_b), (a, more_a, less_a) = parts[-2], parts[-1]
        parts = parts[:-2] + [(a - b, more_a + less_b, less_a + more_b)]
    return [0 if table in parts[0][1] else 1 for table in range(len(costs))]


def plans():
    rows, ids = [table[0] for table in TABLES], [table[1] for table in TABLES]
    halves = [((0, (r + 1) // 2), ((r + 1) // 2, r)) for r in rows]
    return {
        "all on one rank": whole([0] * len(TABLES)),
        "tables in turn": whole([table % RANKS for table in range(len(TABLES))]),
        "greedy by rows": whole(greedy(rows)),
        "Karmarkar–Karp by ids": whole(differencing(ids)),
        "every table by rows": [tile(t, halves[t][rank], rank) for t in range(len(TABLES)) for rank in range(RANKS)],
    }


def predict(rowmill, learned, folder, tiles):
    """Predicted lookups and updates of each rank, in milliseconds."""
    times = []
    for rank in range(RANKS):
        own = []
        for part in (part for part in tiles if part["rank"] == rank):
            (rows, ids), held = TABLES[part["table"]], part["rows"]["end"] - part["rows"]["start"]
            own.append((held, part["columns"]["end"] - part["columns"]["start"], max(1, round(ids * held / rows))))
        if not own:
            times.append(0.0)
            continue
        path = folder / "rank.toml"
        path.write_text(config(own))
        command = [rowmill, "predict", "step", "--model", path, "--hardware", learned, "--by", "rank", "--format", "json"]
        row = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)[0]
        times.append((row["lookup_ns"] + row["embedding_update_ns"]) / 1e6)
    return times


def train(rowmill, folder, arguments):
    """Measured lookups and updates of each rank, in milliseconds a step, and the plan of the run."""
    run, trace = (pathlib.Path(tempfile.mkdtemp(dir=folder)) for _ in range(2))
    command = [rowmill, "train", folder / "model.toml", "--synthetic", str(20 * BATCH), "--run", run, "--threads", str(RANKS)]
    command += ["--trace", trace, "--trace-steps", "3..15", *arguments]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    times = []
    for rank in range(RANKS):
        events = json.loads((trace / f"kineto_rank{rank}.json").read_text())["traceEvents"]
        steps = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["name"].startswith("ProfilerStep#"))
        own = [e for e in events if e["name"] in ("rowmill::embedding_forward", "rowmill::embedding_backward")]
        sums = [sum(e["dur"] for e in own if begin <= e["ts"] < end) for begin, end in steps]
        times.append(statistics.median(sums) / 1e3)
    return times, json.loads((run / "run.json").read_text())["tiles"]


def imbalance(times):
    """The slowest rank relative to the mean."""
    return max(times) / statistics.mean(times)


def draw(rows):
    """Bars of both ranks of every plan, predicted and measured."""
    width, left, line, most = 900, 210, 15, max(max(row["predicted_ms"] + row["measured_ms"]) for row in rows)
    scale = (width - left - 130) / most
    height = 74 + len(rows) * (4 * line + 22) + 20
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        '<text x="20" y="28" font-size="17" font-weight="600">Lookups and row updates of two ranks, ms per step</text>',
    ]
    colours = {"predicted": "#97bbf5", "measured": "#1d2f6f"}
    for at, (kind, colour) in enumerate(colours.items()):
        out.append(f'<rect x="{20 + 110 * at}" y="42" width="12" height="12" fill="{colour}"/>')
        out.append(f'<text x="{38 + 110 * at}" y="53">{kind}</text>')
    y = 74
    for row in rows:
        out.append(f'<text x="20" y="{y + 2 * line + 4}">{row["plan"]}</text>')
        for rank in range(RANKS):
            for kind, colour in colours.items():
                time = row[f"{kind}_ms"][rank]
                out.append(f'<rect x="{left}" y="{y}" width="{max(1, time * scale):.1f}" height="{line - 3}" fill="{colour}"/>')
                out.append(f'<text x="{left + time * scale + 6:.1f}" y="{y + 10}" font-size="11">rank {rank}: {time:.2f}</text>')
                y += line
        y += 22
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rowmill", default="rowmill")
    parser.add_argument("--learned", required=True, help="folder of rowmill predict learn --threads 1")
    parser.add_argument("--svg", type=pathlib.Path, required=True)
    parser.add_argument("--record", type=pathlib.Path, help="folder for the figures as JSON and as a table")
    parser.add_argument("--date", default="", help="date of the record, such as 2026-11-28")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "model.toml").write_text(config([(rows, DIM, ids) for rows, ids in TABLES]))
        tiles, arguments = plans(), {}
        for at, (plan, own) in enumerate(tiles.items()):
            path = folder / f"plan-{at}.json"
            path.write_text(json.dumps({"version": 1, "world_size": RANKS, "tiles": own}))
            arguments[plan] = ["--plan", path]
        arguments["planner"] = ["--ranks", str(RANKS), "--sharding", "auto"]
        measured = {plan: [] for plan in arguments}
        for _ in range(ROUNDS):
            for plan, own in arguments.items():
                times, tiles[plan] = train(args.rowmill, folder, own)
                measured[plan].append(times)
        rows = []
        for plan, times in measured.items():
            median = [statistics.median(rank) for rank in zip(*times)]
            predicted = predict(args.rowmill, args.learned, folder, tiles[plan])
            rows.append({"plan": plan, "predicted_ms": predicted, "measured_ms": median,
                         "predicted_imbalance": imbalance(predicted), "measured_imbalance": imbalance(median)})
    table = ["| plan | slowest rank, predicted, ms | measured, ms | imbalance, predicted | measured |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        table.append(f"| {row['plan']} | {max(row['predicted_ms']):.2f} | {max(row['measured_ms']):.2f} "
                     f"| {row['predicted_imbalance']:.2f} | {row['measured_imbalance']:.2f} |")
    print("\n".join(table))
    args.svg.write_text(draw(rows))
    if args.record:
        records.write(args.record, f"load-balance-{args.date}", {"machine": machine.describe(), "plans": rows}, "\n".join(table))


if __name__ == "__main__":
    main()
