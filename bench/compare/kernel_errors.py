"""Draws the errors of kernel models beside those of the published MLPs and of rooflines, and writes them as Markdown.

    rowmill-bench published --kernels TABLES --format json > known.json
    rowmill predict evaluate --kernels --leave-out TABLES --format json > left_out.json
    python3 bench/compare/kernel_errors.py known.json left_out.json docs/kernel-errors.svg
"""

import json
import sys

WIDTH, ROW, LEFT, SCALE, MOST = 760, 28, 190, 7.0, 70.0
BAR = 8
LEFT_OUT = (
    "roofline_mape_pct",
    "unchanged_mape_pct",
    "nearest_line_mape_pct",
    "trees_mape_pct",
    "mape_pct",
    "shots_mape_pct",
    "covered_pct",
    "layers_covered_pct",
)


def bar(out, y, value, height, colour):
    length = SCALE * min(value, MOST)
    out.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{height}" fill="{colour}"/>')
    out.append(f'<text x="{LEFT + length + 4:.1f}" y="{y + height - 1}">{value:.1f}</text>')


def drawing(rows):
    height = 50 + ROW * len(rows)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="9">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        '<text x="10" y="16" font-size="11">Mean absolute error in %, test rows above the floor: '
        'model (dark), published MLP (orange), measured-peak roofline (light)</text>',
    ]
    for number, row in enumerate(rows):
        y = 30 + ROW * number
        out.append(f'<text x="10" y="{y + 15}" font-size="11">{row["kind"]} on {row["device"]}</text>')
        bar(out, y, row["mape_pct"], BAR, "#1f5fa8")
        if "mlp" in row:
            bar(out, y + BAR, row["mlp"]["mape_pct"], BAR, "#e08a2e")
        bar(out, y + 2 * BAR, row["measured_peak_mape_pct"], BAR, "#b9cde6")
    out.append("</svg>")
    return "\n".join(out) + "\n"


def both(row, name, digits):
    return f'{row[name + "gmae_pct"]:.{digits}f}/{row[name + "mape_pct"]:.{digits}f}'


def means(rows):
    """A row for each kind, with the means over the devices that were left out."""
    kinds = {}
    for row in rows:
        kinds.setdefault(row["kind"], []).append(row)
    return [
        {"kind": kind, "device": "mean"} | {column: sum(row[column] for row in own) / len(own) for column in LEFT_OUT}
        for kind, own in kinds.items()
    ]


def main(known, left_out, target):
    with open(known) as file:
        rows = json.load(file)["kernels"]
    with open(left_out) as file:
        others = json.load(file)["left_out"]
    with open(target, "w") as file:
        file.write(drawing(rows))
    print(
        "| kernel | device | rows | roofline | of measured peaks | unchanged | line | trees | published MLP | model "
        "| far above the floor | covered |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    for row in rows:
        mlp = both(row["mlp"], "", 2) if "mlp" in row else ""
        print(
            f'| {row["kind"]} | {row["device"]} | {row["rows"]:,} | {both(row, "roofline_", 1)} | '
            f'{both(row, "measured_peak_", 1)} | {row["unchanged_mape_pct"]:.1f} | {row["line_mape_pct"]:.1f} | '
            f'{row["trees_mape_pct"]:.1f} | {mlp} | {both(row, "", 2)} | '
            f'{row["kernel_mape_pct"]:.2f} | {row["covered_pct"]:.1f} |'
        )
    print("\n| kernel | device | layers | width | rule | rate | epochs | chosen by |\n|---|---|---|---|---|---|---|---|")
    for row in rows:
        if "mlp" in row:
            mlp = row["mlp"]
            print(
                f'| {row["kind"]} | {row["device"]} | {mlp["layers"]} | {mlp["width"]} | {mlp["optimizer"]} | '
                f'{mlp["learning_rate"]:g} | {mlp["epoch"]} | {mlp["calibrate_gmae_pct"]:.2f} |'
            )
    print(
        "\n| kernel | left out | roofline | unchanged | nearest line | trees | no rows | 20 rows | covered | layers covered |"
        "\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    for row in others + means(others):
        cells = " | ".join(f"{row[column]:.1f}" for column in LEFT_OUT)
        print(f'| {row["kind"]} | {row["device"]} | {cells} |')


if __name__ == "__main__":
    main(*sys.argv[1:])
