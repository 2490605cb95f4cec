"""Troubles of the network and its servers, planted for the checks of ``doctor``."""

from __future__ import annotations

import errno
import os
import time
from functools import partial

from holdfast.bootstrap.doctor import (
    device_checks,
    diagnosis,
    network_checks,
)
from holdfast.bootstrap.doctor.diagnosis import perform_together
from holdfast.bootstrap.doctor.named_places import DatabasePlace, HttpPlace, HubPlace
from tests.support.planted_troubles import (
    closed_port,
    http_server,
    named,
    settings_of,
    trouble,
)


@trouble("error", "timedatectl")
def clock_that_differs_from_a_server(tmp_path, monkeypatch):
    with http_server(shift=-7200.0) as url:
        server = network_checks.time_of_servers([url], lambda each: network_checks.send_request(each, 5))
    return device_checks.check_clock(time.time(), 0.0, 0.0, server, needs_network=True)


@trouble("error", "AWS_ENDPOINT_URL")
def unreachable_bucket(tmp_path, monkeypatch):
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{closed_port()}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    try:
        (check,) = diagnosis.data_checks(settings_of("data.path=s3://bucket/texts/*.jsonl"), 4.0)
        return named("data.path", perform_together([check]))
    finally:
        S3FileSystem.clear_instance_cache()


@trouble("error", "correct data.path")
def missing_data(tmp_path, monkeypatch):
    (check,) = diagnosis.data_checks(settings_of(f"data.path={tmp_path / 'none'}", "data.kind=files"), 4.0)
    return named("data.path", perform_together([check]))


@trouble("error", "unset HF_HUB_OFFLINE")
def model_that_is_not_cached(tmp_path, monkeypatch):
    place = HubPlace("model.path", "nobody/none", None)
    return network_checks.check_hub(place, lambda: None, is_offline=True, is_cached=False)


@trouble("error", "unset HF_HUB_OFFLINE")
def files_of_the_hub_that_may_not_be_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (check,) = diagnosis.data_checks(settings_of("data.path=hf://datasets/nobody/none/a.txt"), 4.0)
    return named("data.path", perform_together([check]))


@trouble("error", "HF_ENDPOINT")
def hub_that_does_not_answer(tmp_path, monkeypatch):
    def ask() -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))

    place = HubPlace("model.path", "nobody/none", None)
    return network_checks.check_hub(place, ask, is_offline=False, is_cached=False)


@trouble("warning", "start the server")
def tracker_that_is_down(tmp_path, monkeypatch):
    place = HttpPlace("monitors.mlflow.tracking_uri", f"http://127.0.0.1:{closed_port()}")
    return network_checks.check_server(place, partial(network_checks.send_request, seconds=5))


@trouble("warning", "MLFLOW_TRACKING_TOKEN")
def tracker_that_refuses(tmp_path, monkeypatch):
    with http_server(status=401) as url:
        place = HttpPlace("monitors.mlflow.tracking_uri", url, "/api/2.0/mlflow/experiments/search")
        return network_checks.check_server(place, partial(network_checks.send_request, seconds=5))


@trouble("warning", "wandb login")
def missing_key_of_wandb(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    (tmp_path / "netrc").write_text("machine other.example login user password none\n")
    return network_checks.check_wandb_key("https://api.wandb.ai", str(tmp_path / "netrc"))


@trouble("error", "start the server, open its port")
def database_that_is_down(tmp_path, monkeypatch):
    dsn = f"postgresql://user:hunter2@127.0.0.1:{closed_port()}/ledger"
    place = DatabasePlace("ledger.dsn", dsn, is_needed=True)
    return network_checks.check_database(place, partial(network_checks.ask_postgres, seconds=2), has_recorded=False)


@trouble("error", "ray start --head")
def cluster_that_is_down(tmp_path, monkeypatch):
    connect = partial(network_checks.connect_briefly, seconds=2)
    return network_checks.check_ray(f"127.0.0.1:{closed_port()}", connect)
