#!/usr/bin/env python3
"""Draws one step of a rowmill trace as an SVG: the README's picture.

    python bench/compare/step_picture.py TRACE.json OUT.svg [STEP]

Reads the Kineto rows (`ProfilerStep#N`, `cpu_op`, `kernel`); knows nothing of how they were recorded.
"""
import html
import json
import sys

WIDTH, MARGIN, ROW = 1200, 24, 34
# The first word that a name contains decides; forward and backward of a product differ.
COLOURS = {
    "gemm_forward": "#4269d0", "gemm_backward_input": "#12a5b8", "gemm_backward_weight": "#1d2f6f",
    "embedding_forward": "#ff725c", "embedding": "#c2341d", "interaction": "#6cc5b0", "relu": "#97bbf5", "pack": "#97bbf5",
    "dense_update": "#efb118", "dist": "#a463f2", "all_reduce": "#a463f2", "input_wait": "#9498a0",
    "loss": "#9c6b4e", "concat": "#6cc5b0", "cross": "#3ca951",
}
# What is written where the name has no room: the end of the name.
SHORT = {"gemm_forward": "forward", "gemm_backward_input": "input", "gemm_backward_weight": "weight"}


def colour(name):
    return next((c for word, c in COLOURS.items() if word in name), "#9498a0")


def main():
    trace, out = sys.argv[1], sys.argv[2]
    events = json.load(open(trace))["traceEvents"]
    steps = sorted((e for e in events if e["name"].startswith("ProfilerStep#")), key=lambda e: e["ts"])
    wanted = f"ProfilerStep#{sys.argv[3]}" if len(sys.argv) > 3 else steps[len(steps) // 2]["name"]
    step = next(e for e in steps if e["name"] == wanted)
    begin, length = step["ts"], step["dur"]
    inside = [e for e in events if e.get("ph") == "X" and begin <= e["ts"] < begin + length]
    ops = [e for e in inside if e.get("cat") == "cpu_op"]
    parts = {}
    for op in ops:
        name = op["name"].removeprefix("rowmill::")
        parts[name] = parts.get(name, 0) + op["dur"]
    scale = (WIDTH - 2 * MARGIN) / length
    legend = sorted(parts.items(), key=lambda item: -item[1])
    columns = 3
    height = 130 + 20 * -(-len(legend) // columns)
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="30" font-size="17" font-weight="600" fill="#1a1a1a">One training step, '
        f"{length / 1000:.1f} ms, from rowmill's own trace</text>",
    ]
    y = 48
    for op in ops:
        x, width = MARGIN + (op["ts"] - begin) * scale, max(op["dur"] * scale, 0.5)
        name = html.escape(op["name"].removeprefix("rowmill::"))
        svg.append(
            f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{ROW}" fill="{colour(name)}" '
            f'stroke="#ffffff" stroke-width="0.6"><title>{name} {op["dur"] / 1000:.3f} ms</title></rect>'
        )
        label = next((text for text in (name, SHORT.get(name, "")) if width > 8.2 * len(text)), "")
        if label:
            svg.append(f'<text x="{x + 5:.1f}" y="{y + 22}" fill="#ffffff">{label}</text>')
    for i, (name, total) in enumerate(legend):
        x = MARGIN + i % columns * (WIDTH - 2 * MARGIN) / columns
        y_text = 118 + i // columns * 20
        svg.append(f'<rect x="{x:.0f}" y="{y_text - 11}" width="12" height="12" fill="{colour(name)}"/>')
        svg.append(
            f'<text x="{x + 18:.0f}" y="{y_text}" fill="#1a1a1a">{html.escape(name)}: '
            f"{total / 1000:.2f} ms, {100 * total / length:.1f} %</text>"
        )
    svg.append("</svg>")
    with open(out, "w") as file:
        file.write("\n".join(svg) + "\n")


if __name__ == "__main__":
    main()
