"""Runs the commands of docs/hub-sql.md as they stand there, and prints their results as JSON.

Usage: hub_sankey.py PAGE STORE ENGINE..., with the engines duckdb, clickhouse and spark
"""

import json
import re
import sys


def read_commands(page, store):
    blocks = re.findall(r"```sql (\w+)\n(.*?);\n```", open(page).read(), re.S)
    return {name: text.replace("STORE", store) for name, text in blocks}


def run_duckdb(view, queries):
    import duckdb

    connection = duckdb.connect()
    connection.execute(view)
    for query in queries:
        cursor = connection.execute(query)
        names = [column[0] for column in cursor.description]
        yield [dict(zip(names, row)) for row in cursor.fetchall()]


def run_clickhouse(view, queries):
    from chdb import session

    with session.Session() as chdb:
        chdb.query("CREATE DATABASE fleet ENGINE = Atomic")
        chdb.query("USE fleet")
        chdb.query(view)
        for query in queries:
            lines = str(chdb.query(query, "JSONEachRow")).splitlines()
            yield [json.loads(line) for line in lines]


def run_spark(view, queries):
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sql(view)
    for query in queries:
        yield [row.asDict() for row in spark.sql(query).collect()]
    spark.stop()


ENGINES = {"duckdb": run_duckdb, "clickhouse": run_clickhouse, "spark": run_spark}
page, store, *names = sys.argv[1:]
commands = read_commands(page, store)
results = {}
for name in names:
    sankey, users = ENGINES[name](commands[name], [commands["sankey"], commands["users"]])
    results[name] = {"sankey": sankey[0], "users": users}
print(json.dumps(results))
