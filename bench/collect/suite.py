"""A folder of measurements with its list, suite.json: what was run, on what, and every file with its hash.

Every file is written under a temporary name and renamed, the list after each run, so a suite is whole at any moment and an
interrupted one goes on where it stopped. Knows nothing of what is measured.
"""
import contextlib
import datetime
import fcntl
import gzip
import hashlib
import json
import os
import pathlib
import signal
import sys
import time

import device as devices

SCHEMA = "rowmill-suite"
VERSION = 1
LIST = "suite.json"
SIZE_MOST = 25_000_000
# Where runs write; what else is in a suite's folder is left alone.
FOLDERS = ("collect", "microbench", "cases")
# A run that takes its process with it is not tried for ever.
ATTEMPTS_MOST = 2
FINISHED = ("done", "skipped", "out_of_memory", "failed")


class Refused(Exception):
    """The suite cannot be written here; the message says why and what to do."""


class LimitReached(Exception):
    """The time of this call is over; what is missing is for the next call."""


class Suite:
    """An open suite. Use as a context: it holds the folder against a second writer."""

    def __init__(self, folder, identity):
        self.folder = pathlib.Path(folder)
        self.identity = identity
        self.content = {"schema": SCHEMA, "version": VERSION, **identity, "environments": {}, "runs": [], "files": []}
        self.limit = None

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.open()
        except BaseException as error:
            os.close(self.handle)
            if isinstance(error, BlockingIOError):
                raise Refused(f"{self.folder}: another process writes this suite; wait for it, or choose another --out")
            raise
        return self

    def open(self):
        path = self.folder / LIST
        if not path.exists():
            if any(self.folder.iterdir()):
                raise Refused(f"{self.folder}: expected a suite or an empty folder, found files and no {LIST}; "
                              "choose another --out")
            return self.save()
        try:
            self.content = self.checked(json.loads(path.read_text()))
        except ValueError as error:
            raise Refused(f"{path}: expected the list of a suite, got no JSON ({error}); choose another --out")
        for left in self.folder.rglob(".*.tmp"):
            left.unlink()
        self.remove_unlisted()

    def remove_unlisted(self):
        """What runs wrote that did not come to their end."""
        listed = {one["path"] for one in self.content["files"]}
        for below in FOLDERS:
            for path in (self.folder / below).rglob("*"):
                if path.is_file() and path.relative_to(self.folder).as_posix() not in listed:
                    path.unlink()

    def __exit__(self, *_):
        os.close(self.handle)

    def checked(self, content):
        """A suite that is there must be the same measurement."""
        if (content.get("schema"), content.get("version")) != (SCHEMA, VERSION):
            raise Refused(f"{self.folder / LIST}: expected {SCHEMA} version {VERSION}, got {content.get('schema')!r} "
                          f"version {content.get('version')!r}; choose another --out")
        for key, value in self.identity.items():
            if content.get(key) != value:
                raise Refused(f"{self.folder}: holds a suite with {key}={content.get(key)!r}, this call has {value!r}; "
                              "choose another --out, or call with the same options")
        return content

    # ---- files ----

    def add(self, run, path, data, kind, **facts):
        """Writes a file of a run; a name that ends in .gz is compressed."""
        if path.endswith(".gz"):
            data = gzip.compress(data, 9, mtime=0)
        write(self.folder / path, data)
        entry = {"path": path, "kind": kind, "run": run, **facts, "bytes": len(data),
                 "sha256": hashlib.sha256(data).hexdigest()}
        self.content["files"] = [one for one in self.content["files"] if one["path"] != path] + [entry]

    def read(self, path):
        data = (self.folder / path).read_bytes()
        return gzip.decompress(data) if path.endswith(".gz") else data

    def files(self, kind):
        return [one for one in self.content["files"] if one["kind"] == kind]

    def bytes(self):
        return sum(one["bytes"] for one in self.content["files"])

    def save(self):
        self.content["files"].sort(key=lambda one: one["path"])
        write(self.folder / LIST, (json.dumps(self.content, indent=1) + "\n").encode())

    # ---- runs ----

    def has(self, run):
        return any(one["id"] == run and one["status"] in FINISHED for one in self.content["runs"])

    def forget_failed(self):
        """Runs that failed are tried again."""
        self.content["runs"] = [one for one in self.content["runs"] if one["status"] not in ("failed", "out_of_memory")]

    def skip(self, run, reason, **facts):
        self.record({"id": run, **facts, "status": "skipped", "seconds": 0.0, "reason": reason})

    def record(self, entry):
        runs = [one for one in self.content["runs"] if one["id"] != entry["id"]]
        self.content["runs"] = runs + [entry]
        self.save()

    def perform(self, run, device, work, **facts):
        """Does `work()`, which adds the run's files and may return facts of it, unless it was done; says what came of it.

        A run that fails, or for which memory does not suffice, is recorded as such and the next one goes on.
        """
        if self.has(run):
            return
        if self.limit and time.monotonic() > self.limit:
            raise LimitReached
        attempts = 1 + sum(one["attempts"] for one in self.content["runs"] if one["id"] == run)
        kept = list(self.content["files"])
        begin = time.monotonic()
        status, reason, found = "done", None, {}
        try:
            self.record({"id": run, **facts, "status": "running", "attempts": attempts})
            if attempts > ATTEMPTS_MOST:
                raise RuntimeError(f"{ATTEMPTS_MOST} processes ended in the middle of this run")
            found = work() or {}
        except Exception as error:
            self.take_back(kept)
            status = "out_of_memory" if devices.is_out_of_memory(error) else "failed"
            reason = first_line(error)
        except BaseException:
            # Interrupted by hand: as if it had not begun.
            self.take_back(kept)
            self.content["runs"] = [one for one in self.content["runs"] if one["id"] != run]
            self.save()
            raise
        finally:
            device.forget()
        seconds = round(time.monotonic() - begin, 2)
        self.record({"id": run, **facts, "status": status, "seconds": seconds, "reason": reason, **found})
        say(f"{run:<48} {seconds:6.1f} s  {status}{': ' + reason if reason else ''}")
        if status == "failed":
            still_usable(device, run)

    def take_back(self, kept):
        """To the files there were before a run."""
        self.content["files"] = kept
        self.remove_unlisted()

    def begin_stage(self, stage, script, environment, seconds):
        """Notes what the stage runs on, and for how many seconds it may begin further runs."""
        self.limit = time.monotonic() + seconds if seconds else None
        self.content["environments"][f"{script}/{stage}"] = {**environment, "date": datetime.date.today().isoformat()}
        self.save()


def still_usable(device, run):
    """An error such as an illegal address leaves a GPU unusable for the process."""
    try:
        device.synchronize()
    except Exception as error:
        raise Refused(f"after {run} the device answers no more ({first_line(error)}); call again to go on without it")


def first_line(error):
    """The message for people, without this machine's paths."""
    import environment

    lines = str(error).strip().splitlines()
    text = lines[0] if lines else ""
    for path in environment.private_paths():
        text = text.replace(path, "")
    return f"{type(error).__name__}: {text}"[:300]


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.tmp")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def say(text):
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def outcome():
    """Turns what ends a script early into a sentence and an exit status: 2 refused, 3 time is over, 130 interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except (Refused, devices.Absent) as error:
        say(f"{pathlib.Path(sys.argv[0]).name}: {error}")
        sys.exit(2)
    except LimitReached:
        say("the time of this call is over (--limit); what was finished is kept: the same call goes on from here")
        sys.exit(3)
    except KeyboardInterrupt:
        say("interrupted; what was finished is kept: the same call goes on from here")
        sys.exit(130)
