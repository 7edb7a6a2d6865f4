"""Writes ten made-up files of clicks, each with a test part, for bench/compare/first_model.py.

    python bench/compare/made_up_files.py FOLDER --seed 1

Every file is drawn from a planted model, so `facts.json` beside it has the AUC of the true probabilities,
which no model can exceed in expectation. Files with a time have the newest rows as their test part. The
same seed writes the same bytes. Seeds below 1000 are for development: `rowmill init` was tuned on them.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd

START = pd.Timestamp("2025-03-03")


class Drawn:
    """A drawn file: its columns, the true logits, and how the baselines should read the columns."""

    def __init__(self, random, rows):
        self.random, self.rows = random, rows
        self.columns, self.logit = {}, np.zeros(rows)
        self.numbers, self.categories, self.lists, self.time = [], [], [], None

    def number(self, name, values, effect=None):
        self.columns[name] = values
        self.numbers.append(name)
        if effect is not None:
            self.logit += effect

    def category(self, name, count, scale, skew=1.1, text="{}"):
        """Adds a column of `count` categories with Zipf frequencies, whose effects are N(0, scale)."""
        ids = self.draw_ids(count, skew)
        # A permutation, so that neither names nor integers tell how frequent a category is.
        codes = self.random.permutation(count)
        self.columns[name] = np.array([text.format(code) for code in codes], dtype=object)[ids]
        self.categories.append(name)
        self.logit += self.random.normal(0.0, scale, count)[ids]
        return ids

    def draw_ids(self, count, skew, rows=None):
        weights = np.arange(1, count + 1) ** -skew
        return self.random.choice(count, self.rows if rows is None else rows, p=weights / weights.sum())

    def vectors(self, ids, count, dim, scale):
        return self.random.normal(0.0, scale, (count, dim))[ids]

    def times(self, days):
        """Adds ascending times over `days` days, and returns them as shares of the whole period."""
        share = np.sort(self.random.random(self.rows))
        # Seconds are whole, so that the file has the usual form of times.
        self.time = START + pd.to_timedelta((share * days * 86400).astype(int), unit="s")
        return share

    def center(self, rate):
        """Shifts the logits so that the mean probability is `rate`."""
        low, high = -20.0, 20.0
        for _ in range(60):
            middle = (low + high) / 2
            if sigmoid(self.logit + middle).mean() < rate:
                low = middle
            else:
                high = middle
        self.logit += low


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def ecommerce(random):
    """Clicks in a shop: users, items, prices with a long tail, taste as products of vectors."""
    drawn = Drawn(random, 60_000)
    share = drawn.times(28)
    hour = (share * 28 * 24) % 24
    drawn.logit += 0.4 * np.sin((hour - 15) / 24 * 2 * np.pi)
    user = drawn.category("user_id", 3000, 0.5, 0.8, "{}")
    item = drawn.category("item_id", 800, 0.6, 1.0, "{}")
    drawn.category("device", 4, 0.3, 0.7, "device-{}")
    price = np.exp(random.normal(3.0, 1.0, 800))[item].round(2)
    drawn.number("price", price, -0.35 * np.log1p(price))
    pages = random.geometric(0.2, drawn.rows)
    drawn.number("pages", pages, 0.5 * np.log(pages))
    drawn.logit += (drawn.vectors(user, 3000, 4, 0.5) * drawn.vectors(item, 800, 4, 0.6)).sum(1)
    drawn.center(0.15)
    drawn.columns = {"time": drawn.time.strftime("%Y-%m-%d %H:%M:%S"), **drawn.columns}
    return drawn, "csv"


def avazu_like(random):
    """The layout of Avazu: hours as digits, hexadecimal ids, and integers that are identifiers."""
    drawn = Drawn(random, 60_000)
    share = drawn.times(10)
    drawn.logit += 0.2 * np.sin((share * 240 % 24 - 13) / 24 * 2 * np.pi)
    hexadecimal = lambda count: [f"{value:08x}" for value in random.integers(0, 2**32, count)]
    for name, count, scale in [("site_id", 600, 0.5), ("site_category", 20, 0.3), ("app_id", 400, 0.5)]:
        ids = drawn.category(name, count, scale, 1.3)
        drawn.columns[name] = np.array(hexadecimal(count), dtype=object)[ids]
    model = drawn.category("device_model", 1500, 0.4, 1.1)
    drawn.columns["device_model"] = np.array(hexadecimal(1500), dtype=object)[model]
    drawn.category("banner_pos", 5, 0.3, 1.5)
    # C14 is a campaign among 1,800 scattered integers, and C17 is the advertiser of the campaign.
    campaign = drawn.category("C14", 1800, 0.7, 0.9)
    drawn.columns["C14"] = np.sort(random.choice(np.arange(375, 24052), 1800, replace=False))[
        random.permutation(1800)
    ][campaign]
    advertiser = random.integers(0, 300, 1800)[campaign]
    drawn.columns["C17"] = np.sort(random.choice(np.arange(112, 2758), 300, replace=False))[advertiser]
    drawn.categories.append("C17")
    drawn.logit += (drawn.vectors(model, 1500, 3, 0.35) * drawn.vectors(campaign, 1800, 3, 0.5)).sum(1)
    drawn.center(0.17)
    drawn.columns = {"hour": drawn.time.strftime("%y%m%d%H"), **drawn.columns}
    return drawn, "csv"


def criteo_like(random):
    """The layout of Criteo: a label, 13 counts with long tails and gaps, 26 hexadecimal categories."""
    drawn = Drawn(random, 50_000)
    hidden = random.normal(size=(drawn.rows, 4))
    for index in range(1, 14):
        loads = random.normal(0.0, 0.5, 4)
        value = np.floor(np.exp(hidden @ loads + random.normal(1.0, 0.8, drawn.rows)))
        effect = random.normal(0.0, 0.15) * np.log1p(value)
        value = np.where(random.random(drawn.rows) < random.uniform(0, 0.4), np.nan, value)
        drawn.number(f"I{index}", value, effect)
    sizes = np.exp(random.uniform(np.log(4), np.log(6000), 26)).astype(int)
    ids = {}
    for index, count in enumerate(sizes, 1):
        ids[index] = drawn.category(f"C{index}", count, 0.22, 1.1)
        names = np.array([f"{value:08x}" for value in random.integers(0, 2**32, count)], dtype=object)
        values = names[ids[index]]
        values[random.random(drawn.rows) < 0.05] = ""
        drawn.columns[f"C{index}"] = values
    for a, b in [(1, 2), (3, 4), (5, 6)]:
        left, right = drawn.vectors(ids[a], sizes[a - 1], 2, 0.4), drawn.vectors(ids[b], sizes[b - 1], 2, 0.5)
        drawn.logit += (left * right).sum(1)
    drawn.logit += 0.5 * np.tanh(hidden[:, 0] * hidden[:, 1])
    drawn.center(0.25)
    return drawn, "criteo"


def decimal_commas(random):
    """An export of a European spreadsheet: semicolons, amounts such as 1.234,50, no time."""
    drawn = Drawn(random, 30_000)
    income = np.exp(random.normal(7.6, 0.6, drawn.rows)).round(2)
    age = random.integers(18, 90, drawn.rows)
    debt = (np.exp(random.normal(6.5, 1.2, drawn.rows)) - 300).clip(0).round(2)
    drawn.number("Einkommen", income, 0.5 * (np.log(income) - 7.6))
    drawn.number("Schulden", debt, -0.25 * np.log1p(debt))
    # The effect of age is not monotonic, so a linear model needs age as a category.
    drawn.number("Alter", age, 0.8 * np.cos((age - 45) / 20))
    region = drawn.category("Region", 16, 0.4, 0.5, "Region {}")
    drawn.category("Beruf", 250, 0.5, 0.9, "Beruf {}")
    kind = drawn.category("Vertrag", 3, 0.3, 0.5, "Typ {}")
    drawn.logit += random.normal(0.0, 0.5, (16, 3))[region, kind]
    drawn.logit += 0.6 * (np.log(income) - 7.6) * (kind == 1)
    drawn.center(0.3)
    def german(value):
        return f"{value:,.2f}".replace(",", "_").replace(".", ",").replace("_", ".")
    for name in ["Einkommen", "Schulden"]:
        drawn.columns[name] = [german(value) for value in drawn.columns[name]]
    return drawn, "semicolon"


def lists_in_parquet(random):
    """Parquet with a list of tags per item, a list of viewed items per user, and timestamps."""
    drawn = Drawn(random, 50_000)
    drawn.times(14)
    tags, items = 120, 1200
    tag_effect, tag_vector = random.normal(0.0, 0.5, tags), random.normal(0.0, 0.6, (tags, 3))
    lengths = random.integers(1, 6, items)
    of_item = [random.choice(tags, length, replace=False) for length in lengths]
    item = drawn.category("item", items, 0.3, 0.9, "i{}")
    taste = random.integers(0, tags, drawn.rows)
    viewed = [
        np.concatenate([[first], drawn.draw_ids(tags, 0.6, length)])
        for first, length in zip(taste, random.integers(0, 7, drawn.rows))
    ]
    drawn.columns["tags"] = [[f"t{tag}" for tag in of_item[one]] for one in item]
    drawn.columns["viewed"] = [[f"t{tag}" for tag in one] for one in viewed]
    drawn.lists = ["tags", "viewed"]
    item_mean = np.array([tag_vector[one].mean(0) for one in of_item])[item]
    view_mean = np.array([tag_vector[one].mean(0) for one in viewed])
    drawn.logit += np.array([tag_effect[one].mean() for one in of_item])[item]
    drawn.logit += 4.0 * (item_mean * view_mean).sum(1)
    drawn.category("country", 30, 0.4, 1.2, "c{}")
    drawn.number("position", random.integers(1, 21, drawn.rows))
    drawn.logit -= 0.5 * np.log(drawn.columns["position"])
    drawn.center(0.2)
    drawn.columns = {"time": drawn.time, **drawn.columns}
    return drawn, "parquet"


def few_rows(random):
    """A small survey, with 1,500 training rows."""
    drawn = Drawn(random, 21_500)
    for index in range(6):
        value = random.normal(10.0, 3.0, drawn.rows).round(2)
        drawn.number(f"score{index}", value, random.normal(0.0, 0.15) * (value - 10.0))
    drawn.category("city", 40, 0.5, 0.8, "city {}")
    drawn.category("plan", 4, 0.5, 0.5, "plan {}")
    drawn.category("source", 12, 0.4, 1.0, "source {}")
    drawn.logit += 0.06 * (drawn.columns["score0"] - 10.0) * (drawn.columns["score1"] - 10.0)
    drawn.center(0.35)
    return drawn, "csv"


def many_categories(random):
    """Ids with few rows each: 20,000 users, 8,000 pages and 3,000 campaigns in 50,000 rows."""
    drawn = Drawn(random, 70_000)
    drawn.category("user", 20_000, 0.7, 0.5, "u{:05}")
    page = drawn.category("page", 8000, 0.6, 0.9, "/page/{}")
    campaign = drawn.category("campaign", 3000, 0.6, 0.8, "{:06}")
    drawn.category("browser", 12, 0.3, 1.2, "b{}")
    drawn.logit += (drawn.vectors(page, 8000, 2, 0.4) * drawn.vectors(campaign, 3000, 2, 0.4)).sum(1)
    drawn.center(0.2)
    return drawn, "csv"


def strong_drift(random):
    """Effects of items and categories walk over time, so that old rows mislead."""
    drawn = Drawn(random, 60_000)
    share = drawn.times(60)
    item = drawn.category("article", 500, 0.3, 0.9, "a{}")
    section = drawn.category("section", 25, 0.2, 0.7, "s{}")
    reader = drawn.category("reader", 2000, 0.5, 0.7, "{}")
    before, after = random.normal(0.0, 0.8, (2, 500))
    drawn.logit += (1 - share) * before[item] + share * after[item]
    drawn.logit += share * random.normal(0.0, 0.6, 25)[section]
    drawn.logit += (drawn.vectors(reader, 2000, 3, 0.5) * drawn.vectors(section, 25, 3, 0.7)).sum(1)
    drawn.number("length", random.gamma(2.0, 400.0, drawn.rows).round())
    drawn.logit += 0.3 * np.log1p(drawn.columns["length"]) * np.cos(3 * share)
    drawn.center(0.2)
    drawn.columns = {"timestamp": drawn.time.astype("int64") // 10**9, **drawn.columns}
    if drawn.columns["timestamp"].max() < 10**8:
        drawn.columns["timestamp"] = drawn.time.astype("datetime64[s]").astype("int64")
    return drawn, "csv"


def main_effects(random):
    """Main effects alone, where logistic regression has the right form."""
    drawn = Drawn(random, 40_000)
    for index in range(5):
        value = random.normal(0.0, 1.0, drawn.rows).round(3)
        drawn.number(f"x{index}", value, random.normal(0.0, 0.3) * value)
    for index, count in enumerate([5, 20, 100, 500, 2000]):
        drawn.category(f"k{index}", count, 0.5, 0.8, f"v{index}_{{}}")
    drawn.center(0.3)
    return drawn, "tsv"


def interactions(random):
    """Pairs of categories and of numbers decide, and no column has an effect alone."""
    drawn = Drawn(random, 50_000)
    ids = [drawn.category(f"f{index}", 40, 0.0, 0.4, "{}") for index in range(6)]
    for a, b in [(0, 1), (2, 3), (4, 5)]:
        left, right = drawn.vectors(ids[a], 40, 3, 0.7), drawn.vectors(ids[b], 40, 3, 0.8)
        drawn.logit += ((left - left.mean(0)) * (right - right.mean(0))).sum(1)
    a, b = random.normal(0.0, 1.0, (2, drawn.rows)).round(3)
    drawn.number("a", a, 0.8 * a * b)
    drawn.number("b", b)
    drawn.center(0.4)
    # The names f0 to f5 and their integers must not look like numbers.
    for index in range(6):
        drawn.columns[f"f{index}"] = np.array([f"w{value}" for value in drawn.columns[f"f{index}"]], dtype=object)
    return drawn, "csv"


FILES = {
    "ecommerce": (ecommerce, 20_000),
    "avazu_like": (avazu_like, 20_000),
    "criteo_like": (criteo_like, 20_000),
    "decimal_commas": (decimal_commas, 15_000),
    "lists": (lists_in_parquet, 20_000),
    "few_rows": (few_rows, 20_000),
    "many_categories": (many_categories, 20_000),
    "strong_drift": (strong_drift, 15_000),
    "main_effects": (main_effects, 20_000),
    "interactions": (interactions, 20_000),
}
"""Each file's function, and its number of test rows."""


def area(score, label):
    """The area under the ROC curve."""
    rank = pd.Series(score).rank().to_numpy()
    clicks = label.sum()
    return (rank[label == 1].sum() - clicks * (clicks + 1) / 2) / (clicks * (len(label) - clicks))


def write_part(frame, path, form):
    if form == "parquet":
        frame.to_parquet(path, index=False)
    elif form == "criteo":
        frame.to_csv(path, index=False, header=False, sep="\t", float_format="%.0f")
    else:
        frame.to_csv(path, index=False, sep={"csv": ",", "tsv": "\t", "semicolon": ";"}[form])


def write(name, seed, folder):
    """Writes one file with its test part, and returns its facts."""
    draw, test_rows = FILES[name]
    # The name is part of the seed, so that files do not share random numbers.
    random = np.random.default_rng([seed, list(FILES).index(name)])
    drawn, form = draw(random)
    click = (random.random(drawn.rows) < sigmoid(drawn.logit)).astype(int)
    frame = pd.DataFrame({"click": click, **drawn.columns})
    folder.mkdir(parents=True, exist_ok=True)
    ending = {"parquet": "parquet", "criteo": "tsv", "tsv": "tsv"}.get(form, "csv")
    train, test = frame.iloc[:-test_rows], frame.iloc[-test_rows:]
    write_part(train, folder / f"train.{ending}", form)
    write_part(test, folder / f"test.{ending}", form)
    facts = {
        "name": name,
        "seed": seed,
        "form": form,
        "train": f"train.{ending}",
        "test": f"test.{ending}",
        "time": list(drawn.columns)[0] if drawn.time is not None else None,
        "numbers": drawn.numbers,
        "categories": drawn.categories,
        "lists": drawn.lists,
        "train_rows": len(train),
        "test_rows": len(test),
        "rate": float(click.mean()),
        "ceiling": float(area(drawn.logit[-test_rows:], click[-test_rows:])),
    }
    (folder / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--only", nargs="*", default=list(FILES), choices=list(FILES))
    args = parser.parse_args()
    for name in args.only:
        facts = write(name, args.seed, args.folder / name)
        print(f"{name:16} {facts['train_rows']:7} rows, rate {facts['rate']:.3f}, best possible AUC {facts['ceiling']:.4f}")


if __name__ == "__main__":
    main()
