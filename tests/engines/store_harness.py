# SPDX-License-Identifier: Apache-2.0
"""SeaweedFS as an object store on loopback, and a TCP relay before it that counts, slows, cuts and lies."""

import json
import re
import socket
import threading
import time

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

import harness
from harness import free_ports

ADMIN = ("store-admin", "admin-secret")
READER = ("model-reader", "reader-secret")
BUCKET = "models"


def ports_below(limit, count):
    """SeaweedFS adds 10000 to a port for gRPC."""
    found = []
    while len(found) < count:
        found += [port for port in free_ports(count) if port < limit and port + 10000 < 65536]
    return found[:count]


class Store:
    """A SeaweedFS server with one bucket, which READER may only read."""

    def __init__(self, folder):
        folder.mkdir()
        identities = [{"name": "admin", "credentials": [dict(zip(("accessKey", "secretKey"), ADMIN))],
                       "actions": ["Admin", "Read", "List", "Write"]},
                      {"name": "reader", "credentials": [dict(zip(("accessKey", "secretKey"), READER))],
                       "actions": [f"Read:{BUCKET}", f"List:{BUCKET}"]}]
        (folder / "identities.json").write_text(json.dumps({"identities": identities}))
        master, volume, filer, self.port, self.iceberg, self.lance = ports_below(50000, 6)
        self.process = harness.Process(folder, [
            harness.VENV / "weed", "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}",
            f"-volume.port={volume}", "-filer", f"-filer.port={filer}", f"-filer.localSocket={folder}/filer.sock",
            "-s3", f"-s3.port={self.port}", f"-s3.port.iceberg={self.iceberg}", f"-s3.port.lance={self.lance}",
            f"-s3.localSocket={folder}/s3.sock", f"-s3.config={folder}/identities.json", "-volume.max=20"], name="weed")
        self.client = boto3.client("s3", endpoint_url=self.url, aws_access_key_id=ADMIN[0], aws_secret_access_key=ADMIN[1],
                                   region_name="us-east-1", config=Config(
                                       s3={"addressing_style": "path"}, retries={"max_attempts": 0},
                                       request_checksum_calculation="when_required"))
        harness.eventually(self.makes_bucket, 60, 0.3, self.process.log)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def makes_bucket(self):
        assert self.process.alive(), self.process.log()
        try:
            self.client.create_bucket(Bucket=BUCKET)
            self.client.put_object(Bucket=BUCKET, Key="probe", Body=b"x")
            return True
        except Exception:  # not up yet, in one of many ways
            return False

    def put(self, key, body, **options):
        self.client.put_object(Bucket=BUCKET, Key=key, Body=body, **options)

    def put_file(self, key, path, part_bytes=None, **options):
        parts = part_bytes or 1 << 40
        self.client.upload_file(str(path), BUCKET, key, ExtraArgs=options,
                                Config=TransferConfig(multipart_threshold=parts, multipart_chunksize=parts))

    def put_folder(self, prefix, folder):
        for path in sorted(folder.iterdir()):
            self.put(f"{prefix}/{path.name}", path.read_bytes())


class Relay:
    """Between clients and the store. Threads only move bytes; tests set the fields that are said to be theirs."""

    def __init__(self, port):
        self.target = port
        self.cut_at = None       # tests: end every connection once, when so many bytes have gone to clients
        self.pause_at = None     # tests: let nothing through from that byte on, until it is None again
        self.replace = None      # tests: (old, new) of equal length, in what goes to clients
        self.bytes_down = 0
        self.requests = []       # (method, path, range or None)
        self.lock = threading.Lock()
        self.pairs = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                store = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            with self.lock:
                self.pairs.append((client, store))
            threading.Thread(target=self.up, args=(client, store), daemon=True).start()
            threading.Thread(target=self.down, args=(client, store), daemon=True).start()

    def up(self, client, store):
        try:
            while data := client.recv(65536):
                for head in re.findall(rb"^([A-Z]+) (\S+) HTTP/1.1\r\n(.*?)\r\n\r\n", data, re.S):
                    asked = re.search(rb"^Range: bytes=(\d+)-(\d+)", head[2], re.M)
                    with self.lock:
                        self.requests.append((head[0].decode(), head[1].decode(), tuple(map(int, asked.groups())) if asked else None))
                store.sendall(data)
        except OSError:
            pass
        self.hang_up(client, store)

    def down(self, client, store):
        try:
            while data := store.recv(65536):
                while self.pause_at is not None and self.bytes_down >= self.pause_at:
                    time.sleep(0.01)
                if self.replace:
                    data = data.replace(*self.replace)
                client.sendall(data)
                with self.lock:
                    self.bytes_down += len(data)
                    cut = self.cut_at is not None and self.bytes_down >= self.cut_at
                    if cut:
                        self.cut_at = None
                if cut:
                    self.cut()
        except OSError:
            pass
        self.hang_up(client, store)

    @staticmethod
    def hang_up(*sockets):
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        with self.lock:
            pairs, self.pairs = self.pairs, []
        for pair in pairs:
            self.hang_up(*pair)

    def close(self):
        self.hang_up(self.listener)
        self.listener.close()
        self.cut()
