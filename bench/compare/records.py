"""Where comparisons leave what they found: figures as JSON beside a table for people. Knows no comparison."""
import json
import re


def write(folder, name, report, text):
    """`report` to FOLDER/NAME.json and `text` to FOLDER/NAME.md; the folder is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / f"{name}.md").write_text(text + "\n")


def folder_name(about):
    """Of a machine (`machine.describe()`), as `cargo xtask bench` names it."""
    words = re.findall("[a-z0-9]+", about["cpu"].lower())
    return "-".join([*words, f"{about['cores']}cpu"])
