"""Job files of each kind, held to the published schema of that kind."""

from __future__ import annotations

import copy
import re
import shlex

import jsonschema
import pytest
import yaml

from holdfast.bootstrap.job_files.job import RayWorkers
from holdfast.bootstrap.job_files.render_job import kubernetes_job, ray_job, skypilot_task
from holdfast.configs.settings_layers import load_settings
from tests.support.job_examples import SETTINGS, check, job, jobs

TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec"
KINDS = {"Job": "io.k8s.api.batch.v1.Job", "Service": "io.k8s.api.core.v1.Service"}
NAME_OF_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def documents(text):
    """Return the documents of a YAML file."""
    return [*yaml.safe_load_all(text)]


@pytest.mark.parametrize("each", [*jobs()])
def test_kubernetes_accepts_the_job_and_its_service(each):
    """Each document has only fields of its kind, and a Service comes where pods must find each other."""
    found = documents(kubernetes_job(each))
    for document in found:
        check(document, "kubernetes", KINDS[document["kind"]])
    assert [document["kind"] for document in found] == (["Service", "Job"] if each.needs_meeting else ["Job"])


def test_pods_find_each_other_by_the_service():
    """The endpoint is the first pod by the name that the Service gives it, also before it is ready."""
    service, found = documents(kubernetes_job(job()))
    pod = found["spec"]["template"]["spec"]
    words = pod["containers"][0]["command"]
    assert words[words.index("--rdzv-endpoint") + 1] == "holdfast-mine-0.holdfast-mine:29500"
    assert pod["subdomain"] == service["metadata"]["name"] == found["metadata"]["name"] == "holdfast-mine"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": "holdfast-mine"}
    assert service["spec"]["publishNotReadyAddresses"]
    assert NAME_OF_SERVICE.fullmatch(service["metadata"]["name"])


def test_a_pod_ends_by_the_exit_codes_and_the_grace_period():
    """A mistake ends the Job, a lost machine is not counted, and a pod may take longer to end than the run."""
    spec = documents(kubernetes_job(job(grace_seconds=120, max_restarts=7)))[1]["spec"]
    failed, lost = spec["podFailurePolicy"]["rules"]
    pod = spec["template"]["spec"]
    assert failed["action"] == "FailJob"
    assert failed["onExitCodes"]["values"] == [2, 3]
    assert failed["onExitCodes"]["containerName"] == pod["containers"][0]["name"]
    assert lost == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    assert pod["restartPolicy"] == "Never"  # the API server refuses a podFailurePolicy with any other
    assert pod["terminationGracePeriodSeconds"] > 120
    assert spec["backoffLimit"] == 7 * 4


def test_kubernetes_expands_the_number_of_a_part_alone():
    """Only the index of the pod is a variable; what looks like one in a setting is written as Kubernetes escapes it."""
    (found,) = documents(kubernetes_job(job(4, "prepare")))
    words = found["spec"]["template"]["spec"]["containers"][0]["command"]
    assert words[words.index("--part") + 1] == "$(JOB_COMPLETION_INDEX)/4"
    assert SETTINGS[1].replace("$(", "$$(") in words


@pytest.mark.parametrize("each", [*jobs()])
def test_kuberay_accepts_the_job(each):
    """The RayJob has only fields that KubeRay has, and its pods only those of Kubernetes."""
    (found,) = documents(ray_job(each))
    check(found, "rayjob")
    cluster = found["spec"]["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    for template in (cluster["headGroupSpec"]["template"], group["template"]):
        check(template, "kubernetes", TEMPLATE)
    assert group["replicas"] == each.num_machines
    assert found["spec"]["entrypoint"].startswith(f"python -m holdfast {each.program.command} --on ray ")


def test_a_run_on_ray_has_a_worker_for_each_process():
    """Four machines with several processes each train in as many workers, with a GPU each."""
    each = job(4)
    entrypoint = documents(ray_job(each))[0]["spec"]["entrypoint"]
    number = 4 * each.machine.processes
    assert f"'distributed.workers=[{number}, {number}]'" in entrypoint
    assert f"distributed.gpus_per_worker={int(each.machine.gpus > 0)}" in entrypoint


@pytest.mark.parametrize("workers", [None, RayWorkers(2), RayWorkers(8, 4)])
def test_a_machine_on_ray_has_room_for_its_processes_and_no_more(workers):
    """Ray fills one machine before the next, so each offers what its own processes reserve."""
    each = job(4, workers=workers)
    spec = documents(ray_job(each))[0]["spec"]
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    words = [word for word in shlex.split(spec["entrypoint"]) if word.startswith("distributed.")]
    settings = load_settings([], ["distributed.kind=ray", *words], {}).settings.distributed
    least, most = settings.workers
    assert int(group["rayStartParams"]["num-cpus"]) * group["replicas"] == most * settings.cpus_per_worker
    assert most == 4 * each.machine.processes
    assert least == (workers.least if workers else most)


def test_the_head_of_a_ray_cluster_trains_nothing():
    """The head has no GPU and offers no processor, as it is not one of the machines."""
    head = documents(ray_job(job(cpus=8)))[0]["spec"]["rayClusterSpec"]["headGroupSpec"]
    assert head["rayStartParams"] == {"num-cpus": "0"}
    assert "resources" not in head["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("each", [*jobs()])
def test_skypilot_accepts_the_task(each):
    """The task and its resources have only fields that SkyPilot has."""
    (found,) = documents(skypilot_task(each))
    check(found, "skypilot", "task")
    check(found["resources"], "skypilot", "resources")
    assert found["num_nodes"] == each.num_machines


def test_machines_of_skypilot_install_what_a_bucket_needs():
    """Without an image the extra of the archive is installed, and with one nothing is."""
    archived = job(1, image=None, settings=("state_store.archive.url=s3://bucket/runs",))
    assert documents(skypilot_task(archived))[0]["setup"] == "pip install 'holdfast-lm[s3]'"
    assert "setup" not in documents(skypilot_task(job()))[0]


@pytest.mark.parametrize("render", [kubernetes_job, ray_job, skypilot_task])
def test_a_secret_is_a_name_without_a_value(render):
    """A variable with a secret is asked for by its name alone."""
    (*_, found) = documents(render(job(1, variables=("KEY",))))
    if render is skypilot_task:
        assert found["secrets"] == {"KEY": None}
        return
    text = yaml.safe_dump(found)
    assert "secretKeyRef" in text
    assert "value:" not in text


def test_the_schemas_refuse_what_is_not_theirs():
    """A field that no API has is refused at each depth, or the tests above would pass on anything."""
    _, found = documents(kubernetes_job(job()))
    wrong = copy.deepcopy(found)
    wrong["spec"]["template"]["spec"]["containers"][0]["imagge"] = "x"
    late = copy.deepcopy(found)
    late["spec"]["backofLimit"] = 3
    for document in (wrong, late):
        with pytest.raises(jsonschema.ValidationError):
            check(document, "kubernetes", KINDS["Job"])
    (ray,) = documents(ray_job(job()))
    ray["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] = "4"
    with pytest.raises(jsonschema.ValidationError):
        check(ray, "rayjob")
    (sky,) = documents(skypilot_task(job()))
    for part, document in (("task", sky | {"nodes": 4}), ("resources", sky["resources"] | {"gpu": 8})):
        with pytest.raises(jsonschema.ValidationError):
            check(document, "skypilot", part)
