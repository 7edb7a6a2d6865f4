"""What `rowmill init` and `rowmill train` reach unedited, beside three baselines tuned on the same rows.

    python bench/compare/first_model.py FOLDER --rowmill target/release/rowmill --seeds 1 2 3

For each made-up file of bench/compare/made_up_files.py (written to FOLDER for each seed) and for Adult
(--adult FOLDER with adult-train.csv.gz and adult-test.csv.gz), it runs `rowmill init FILE --evaluation
TEST` and `rowmill train`, and fits logistic regression and gradient-boosted trees of scikit-learn and an
embedding network in PyTorch. Every baseline chooses its settings on the last tenth of the training rows,
which is also the validation part that `init` proposes, and the AUC is taken once on the test part.
Figures are kept in FOLDER/SEED/FILE/figures.json, so that a second call only runs what is missing.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sparse
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

import made_up_files
from made_up_files import area

VALIDATION = 0.1
MODELS = ["logistic regression", "boosted trees", "PyTorch network"]
ADULT = [
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation",
    "relationship", "race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income",
]


class Table:
    """The inputs of the baselines: numbers `[N, n]`, and for each category a list of ids per row."""

    def __init__(self, numbers, bags, sizes, labels):
        self.numbers, self.bags, self.sizes, self.labels = numbers, bags, sizes, labels

    def rows(self, part):
        return Table(self.numbers[part], [bag[part] for bag in self.bags], self.sizes, self.labels[part])


def read_frame(facts, folder, which):
    path = folder / facts[which]
    if facts["form"] == "adult":
        frame = pd.read_csv(path, names=ADULT, skipinitialspace=True, na_values="?", comment="|")
        frame["click"] = frame.pop("income").str.startswith(">50K").astype(int)
        return frame
    if facts["form"] == "parquet":
        return pd.read_parquet(path)
    names = ["click", *facts["numbers"], *facts["categories"]] if facts["form"] == "criteo" else None
    separator = {"criteo": "\t", "tsv": "\t", "semicolon": ";"}.get(facts["form"], ",")
    decimal = {"decimal": ",", "thousands": "."} if facts["form"] == "semicolon" else {}
    texts = {name: str for name in facts["categories"]}
    return pd.read_csv(path, sep=separator, names=names, dtype=texts, keep_default_na=True, **decimal)


def build_tables(facts, folder):
    """Reads both parts, and converts them by what the first nine tenths of the training rows show."""
    train, test = read_frame(facts, folder, "train"), read_frame(facts, folder, "test")
    fit_rows = len(train) - round(len(train) * VALIDATION)
    frame = pd.concat([train, test], ignore_index=True)
    fit = slice(0, fit_rows)
    numbers, bags, sizes = [], [], []

    def add_category(values):
        values = values.astype(object).where(values.notna(), "")
        counts = values[fit].value_counts()
        # Row 0 is for categories that are rare or unseen.
        known = {value: at for at, value in enumerate(counts.index[counts >= 2], 1)}
        ids = values.map(known).fillna(0).astype(int).to_numpy()
        bags.append(ids[:, None])
        sizes.append(len(known) + 1)

    def add_number(values):
        values = values.astype(float)
        tail = (values[fit].max() - values[fit].mean()) / max(values[fit].std(), 1e-9)
        if values.min() >= 0 and tail > 8:
            values = np.log1p(values)
        mean, deviation = values[fit].mean(), values[fit].std()
        numbers.append(((values - mean) / (deviation or 1.0)).fillna(0.0).to_numpy())

    for name in facts["numbers"]:
        add_number(frame[name])
        present = frame[name][fit].dropna()
        if (present == present.round()).all() and present.nunique() <= min(1000, len(present) / 20):
            add_category(frame[name])
    for name in facts["categories"]:
        add_category(frame[name])
    for name in facts["lists"]:
        exploded = frame[name][fit].explode()
        known = {value: at for at, value in enumerate(exploded.value_counts().index, 1)}
        width = int(frame[name].map(len).max())
        bag = np.full((len(frame), width), -1)
        for row, elements in enumerate(frame[name]):
            bag[row, : len(elements)] = [known.get(element, 0) for element in elements]
        bags.append(bag)
        sizes.append(len(known) + 1)
    if facts["time"]:
        values = frame[facts["time"]]
        if facts["name"] == "avazu_like":
            time = pd.to_datetime(values.astype(str), format="%y%m%d%H")
        else:
            time = pd.to_datetime(values, unit="s" if values.dtype.kind in "iu" else None)
        add_category(time.dt.hour)
        add_category(time.dt.dayofweek)
    matrix = np.stack(numbers, 1).astype(np.float32) if numbers else np.zeros((len(frame), 0), np.float32)
    whole = Table(matrix, bags, sizes, frame["click"].to_numpy())
    return whole.rows(fit), whole.rows(slice(fit_rows, len(train))), whole.rows(slice(len(train), None))


def one_hot(table):
    """Numbers, then one column per category; the elements of a list share a weight of 1."""
    parts = [sparse.csr_matrix(table.numbers)]
    for bag, size in zip(table.bags, table.sizes):
        rows, places = np.nonzero(bag >= 0)
        share = 1.0 / np.maximum((bag >= 0).sum(1), 1)[rows]
        parts.append(sparse.csr_matrix((share, (rows, bag[rows, places])), (len(bag), size)))
    return sparse.hstack(parts).tocsr()


def fit_logistic(fit, validation, test):
    x = [one_hot(part) for part in (fit, validation, test)]
    best = (0.0, 0.0, None)
    for strength in [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]:
        model = LogisticRegression(C=strength, max_iter=300).fit(x[0], fit.labels)
        at = area(model.decision_function(x[1]), validation.labels)
        best = max(best, (at, area(model.decision_function(x[2]), test.labels), {"C": strength}), key=lambda b: b[0])
    return best


def fit_trees(fit, validation, test):
    def matrix(part):
        # Trees split numbers, so a category is ordered by its frequency; a list gives its length and
        # its first two elements.
        columns = [part.numbers] + [bag[:, :2] for bag in part.bags]
        columns += [(bag >= 0).sum(1, keepdims=True) for bag in part.bags if bag.shape[1] > 1]
        return np.concatenate(columns, 1)

    x = [matrix(part) for part in (fit, validation, test)]
    categorical, at = [], fit.numbers.shape[1]
    for bag, size in zip(fit.bags, fit.sizes):
        for _ in range(min(2, bag.shape[1])):
            if size <= 250:
                categorical.append(at)
            at += 1
    best = (0.0, 0.0, None)
    for leaves, rate, ridge in [(8, 0.1, 1.0), (31, 0.05, 1.0), (16, 0.05, 10.0)]:
        model = HistGradientBoostingClassifier(
            learning_rate=rate, max_leaf_nodes=leaves, l2_regularization=ridge, max_iter=400, random_state=0,
            categorical_features=categorical, early_stopping=True, n_iter_no_change=20, scoring="roc_auc",
        )
        model.fit(x[0], fit.labels, X_val=x[1], y_val=validation.labels)
        at = area(model.predict_proba(x[1])[:, 1], validation.labels)
        setting = {"leaves": leaves, "rate": rate, "l2": ridge}
        best = max(best, (at, area(model.predict_proba(x[2])[:, 1], test.labels), setting), key=lambda b: b[0])
    return best


class Network(torch.nn.Module):
    """Embeddings of all categories and the numbers, concatenated, and an MLP on top."""

    def __init__(self, table, dim, dropout):
        super().__init__()
        make = lambda size: torch.nn.Embedding(size + 1, dim, padding_idx=size)
        self.embeddings = torch.nn.ModuleList(make(size) for size in table.sizes)
        for embedding in self.embeddings:
            torch.nn.init.normal_(embedding.weight, 0.0, 0.05)
            torch.nn.init.zeros_(embedding.weight.data[-1])
        width = table.numbers.shape[1] + dim * len(table.sizes)
        layers = []
        for inner in (128, 64):
            layers += [torch.nn.Linear(width, inner), torch.nn.ReLU(), torch.nn.Dropout(dropout)]
            width = inner
        self.top = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1))

    def forward(self, numbers, bags, counts):
        vectors = [
            embedding(bag).sum(1) / count for embedding, bag, count in zip(self.embeddings, bags, counts)
        ]
        return self.top(torch.cat([numbers, *vectors], 1))[:, 0]


def fit_network(fit, validation, test):
    def tensors(part):
        bags = [torch.tensor(np.where(bag < 0, size, bag)) for bag, size in zip(part.bags, part.sizes)]
        counts = [torch.tensor(np.maximum((bag >= 0).sum(1, keepdims=True), 1), dtype=torch.float32) for bag in part.bags]
        return torch.tensor(part.numbers), bags, counts

    def score(model, part):
        model.eval()
        with torch.no_grad():
            return model(*part).numpy()

    parts = [tensors(part) for part in (fit, validation, test)]
    labels = torch.tensor(fit.labels, dtype=torch.float32)
    best = (0.0, 0.0, None)
    size = 64 if len(labels) < 5000 else 256
    for dim, rate, decay, dropout in [
        (8, 1e-3, 1e-6, 0.0), (8, 1e-3, 1e-4, 0.2), (16, 1e-3, 1e-5, 0.3), (8, 3e-4, 1e-5, 0.2), (4, 1e-3, 1e-3, 0.0),
    ]:
        torch.manual_seed(1)
        model = Network(fit, dim, dropout)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=decay)
        since, own = 0, 0.0
        for _ in range(12):
            order = torch.randperm(len(labels))
            batches = order.split(size)
            for number, rows in enumerate(batches):
                model.train()
                numbers, bags, counts = parts[0]
                logits = model(numbers[rows], [bag[rows] for bag in bags], [count[rows] for count in counts])
                loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                # Twice per epoch, so that the best checkpoint of the baseline is not missed either.
                if number + 1 in (len(batches) // 2, len(batches)):
                    at = area(score(model, parts[1]), validation.labels)
                    since = 0 if at > own else since + 1
                    own = max(own, at)
                    if at > best[0]:
                        setting = {"dim": dim, "rate": rate, "decay": decay, "dropout": dropout}
                        best = (at, area(score(model, parts[2]), test.labels), setting)
            if since >= 6:
                break
    return best


FITS = dict(zip(MODELS, [fit_logistic, fit_trees, fit_network]))


def run_rowmill(args, facts, folder):
    """Runs `init` and `train` unedited, and returns AUC on validation and test of the best checkpoint."""
    config, run = folder / "proposed.toml", folder / "run"
    subprocess.run(["rm", "-rf", str(run), str(config)], check=True)
    call = [args.rowmill, "init", str(folder / facts["train"]), "--evaluation", str(folder / facts["test"])]
    subprocess.run([*call, "--output", str(config)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    call = [args.rowmill, "train", str(config), "--run", str(run), "--threads", "1", "--format", "json"]
    for setting in args.set:
        call += ["--set", setting]
    out = subprocess.run(call, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finished = json.loads(out.stdout.strip().splitlines()[-1])
    closing = finished["closing"]
    return closing["validation"]["auc"], closing["test"]["auc"], {
        "step": closing["step"],
        "baselines": closing["baselines"],
    }


def adult(folder):
    return {
        "name": "adult", "form": "adult", "time": None, "lists": [], "ceiling": None,
        "train": "adult-train.csv.gz", "test": "adult-test.csv.gz",
        "numbers": ["age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week"],
        "categories": [name for name in ADULT[:-1] if name not in (
            "age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")],
    }


def judge(args, facts, folder, kept_path):
    kept = json.loads(kept_path.read_text()) if kept_path.exists() else {}
    tables = None
    for model in MODELS:
        if model not in kept and not args.only_rowmill:
            tables = tables or build_tables(facts, folder)
            validation, test, setting = FITS[model](*tables)
            kept[model] = {"validation": validation, "test": test, "setting": setting}
            kept_path.write_text(json.dumps(kept, indent=1) + "\n")
    if args.rowmill:
        validation, test, setting = run_rowmill(args, facts, folder)
        kept["rowmill"] = {"validation": validation, "test": test, "setting": setting}
        kept_path.write_text(json.dumps(kept, indent=1) + "\n")
    kept["ceiling"] = {"test": facts["ceiling"]}
    return {model: figures["test"] for model, figures in kept.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rowmill", help="the program; without it only the baselines run")
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--adult", type=Path, help="folder of the shared Adult files")
    parser.add_argument("--only-rowmill", action="store_true", help="do not fit missing baselines")
    parser.add_argument("--set", nargs="*", default=[], help="settings of rowmill train, for experiments")
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = args.only or [*made_up_files.FILES, *(["adult"] if args.adult else [])]
    columns = [*MODELS, "rowmill", "ceiling"]
    print(f"{'file':16}" + "".join(f"{column:>21}" for column in columns))
    wins = losses = 0
    for name in names:
        found = []
        for seed in args.seeds[:1] if name == "adult" else args.seeds:
            if name == "adult":
                folder = args.folder / "adult"
                folder.mkdir(parents=True, exist_ok=True)
                facts = adult(folder)
                for part in ("train", "test"):
                    if not (folder / facts[part]).exists():
                        os.symlink((args.adult / facts[part]).resolve(), folder / facts[part])
            else:
                folder = args.folder / str(seed) / name
                if not (folder / "facts.json").exists():
                    made_up_files.write(name, seed, folder)
                facts = json.loads((folder / "facts.json").read_text())
            found.append(judge(args, facts, folder, folder / "figures.json"))
        mean = {
            column: np.mean([one[column] for one in found])
            for column in columns if all(one.get(column) is not None for one in found)
        }
        line = "".join(f"{mean[column]:21.4f}" if column in mean else f"{'':21}" for column in columns)
        rivals = [mean[model] for model in (MODELS[0], MODELS[2]) if model in mean]
        if "rowmill" in mean and rivals:
            ahead = mean["rowmill"] - max(rivals)
            wins, losses = wins + (ahead > 0.001), losses + (ahead < -0.002)
            line += f"  {ahead:+.4f}"
        print(f"{name:16}{line}", flush=True)
    print(f"rowmill beats both on {wins} files, and is more than 0.002 behind on {losses}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
