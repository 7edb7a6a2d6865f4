"""Trains on objects of an S3 server (moto) and on the same files: same loss, same evaluation, same checkpoint bytes. Also what is
said of a key that may not read, of an object that is not there, and of one that changed. Usage: object_store.py --rowmill FILE"""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import boto3
import pyarrow.csv
import pyarrow.parquet

CONFIG = """
[model]
name = "small"
dense_features = 2
bottom = [8, 4]
top = [8, 1]
interaction = { kind = "dot" }
loss = "bce_with_logits"
tables = [{ name = "a", rows = 50, dim = 4 }]

[optimizer]
sparse = { kind = "rowwise_adagrad", learning_rate = 0.1 }
dense = { kind = "adagrad", learning_rate = 0.05 }

[training]
batch_size = 256
epochs = 1

[data]
format = "csv"
hold_out = 0.1
label = { column = "y" }
dense = [{ column = "u" }, { column = "v", transform = "standardise" }]
categorical = [{ column = "a", kind = "integer" }]
"""
USER = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


def server(folder):
    """A moto server on a port of its own choice, that checks signatures once `reset-auth` was posted."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [str(Path(sys.executable).parent / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    log = open(folder / "moto.log", "w")
    process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "1000000"})
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process, f"http://127.0.0.1:{port}"
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"moto_server does not answer: {(folder / 'moto.log').read_text()}")


def post(url, body):
    import urllib.request

    request = urllib.request.Request(url, data=body.encode(), method="POST")
    urllib.request.urlopen(request).read()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rowmill", required=True)
    arguments = parser.parse_args()
    rowmill = str(Path(arguments.rowmill).absolute())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process, endpoint = server(folder)
        try:
            compare(folder, endpoint, rowmill)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def compare(folder, endpoint, rowmill):
    draw = random.Random(7)
    lines = ["y,u,v,a"] + [f"{draw.randint(0, 1)},{draw.random():.6f},{draw.gauss(3, 9):.5f},{draw.randrange(50)}" for _ in range(200_000)]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    subprocess.run(["gzip", "-k", str(folder / "rows.csv")], check=True)
    table = pyarrow.csv.read_csv(folder / "rows.csv")
    pyarrow.parquet.write_table(table, folder / "rows.parquet", row_group_size=30_000)
    (folder / "job.toml").write_text(CONFIG)
    made = {key.lower(): value for key, value in USER.items() if key != "AWS_DEFAULT_REGION"}
    store = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **made)
    store.create_bucket(Bucket="clicks")
    for file in ["rows.csv", "rows.csv.gz", "rows.parquet"]:
        store.upload_file(str(folder / file), "clicks", f"day 1/{file}")
    # From here on signatures are checked, and rights too.
    iam = boto3.client("iam", endpoint_url=endpoint, region_name="us-east-1", **made)
    keys = {}
    for user, allowed in [("reader", True), ("nobody", False)]:
        iam.create_user(UserName=user)
        if allowed:
            statement = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
            policy = {"Version": "2012-10-17", "Statement": [statement]}
            iam.put_user_policy(UserName=user, PolicyName="read", PolicyDocument=json.dumps(policy))
        key = iam.create_access_key(UserName=user)["AccessKey"]
        keys[user] = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    post(f"{endpoint}/moto-api/reset-auth", "0")

    def run(words, who=keys["reader"]):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        environment.update(who, AWS_ENDPOINT_URL=endpoint, AWS_REGION="us-east-1", AWS_EC2_METADATA_DISABLED="true", HOME=str(folder))
        return subprocess.run([rowmill, *words], cwd=folder, env=environment, capture_output=True, text=True)

    def trained(file, run_folder, data_format):
        words = ["train", "job.toml", "--train", file, "--run", run_folder, "--format", "json", "--set", f"data.format={data_format}"]
        ran = run(words)
        if ran.returncode != 0:
            raise SystemExit(f"rowmill {' '.join(words)}: {ran.stderr}")
        last = json.loads(ran.stdout.splitlines()[-1])
        weights = {path.name: path.read_bytes() for path in (folder / last["checkpoint"]).iterdir() if path.suffix == ".safetensors"}
        assert weights, "no weights"
        return last["loss"], last["evaluation"]["auc"], weights

    for file, data_format in [("rows.csv", "csv"), ("rows.csv.gz", "csv"), ("rows.parquet", "parquet")]:
        here = trained(file, f"here-{file}", data_format)
        there = trained(f"s3://clicks/day 1/{file}", f"there-{file}", data_format)
        assert here == there, f"{file}: {here[:2]} from a file, {there[:2]} from the store"
        again = run(["train", "job.toml", "--train", f"s3://clicks/day 1/{file}", "--run", f"there-{file}", "--set", f"data.format={data_format}",
                     "--resume"])
        assert "using the data prepared earlier" in again.stderr, again.stderr
        print(f"{file}: the same model from s3:// as from a file")
    cases = [
        ("s3://clicks/day 1/none.csv", keys["reader"], ["not found (HTTP status 404, NoSuchKey", "hint:"]),
        ("s3://clicks/day 1/rows.csv", keys["nobody"], ["access denied (HTTP status 403, AccessDenied", keys["nobody"]["AWS_ACCESS_KEY_ID"]]),
        ("s3://clicks/day 1/rows.csv", {**keys["reader"], "AWS_SECRET_ACCESS_KEY": "wrong"}, ["access denied (HTTP status 403, SignatureDoesNotMatch"]),
        ("s3://clicks/day 1/rows.csv", {}, ["access denied (HTTP status 403", "no", "AWS_ACCESS_KEY_ID"]),
    ]
    for file, who, expected in cases:
        ran = run(["train", "job.toml", "--train", file, "--run", "refused"], who)
        assert ran.returncode == 2, (ran.returncode, ran.stderr)
        missing = [text for text in expected if text not in ran.stderr]
        assert not missing, f"{missing} not in {ran.stderr}"
        print(ran.stderr.strip().splitlines()[0])


if __name__ == "__main__":
    main()
