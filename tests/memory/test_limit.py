"""The memory limit: no limit of this process is missed, and none is made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import surefit
from surefit.errors import FindingError
from surefit.gigabytes import GB
from surefit.memory.limit import DEVICE_CONTEXT_BYTES, CgroupTree, Limit, find_limit
from surefit.memory.process_memory import anonymous_bytes

MB = 10**6
CGROUP = "free in this container (cgroup)"
V1_UNLIMITED = "9223372036854771712"


def make_tree(
    folder: Path, groups: dict[str, dict[str, str]], membership: str = "0::/\n"
) -> CgroupTree:
    """A cgroup file system: the files of each group, and the groups of this process."""
    for group, files in groups.items():
        (folder / group).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / group / name).write_text(text)
    (folder / "membership").write_text(membership)
    return CgroupTree(folder, folder / "membership")


def v2(limit: str, anon: int = 0, shmem: int = 0, file: int = 0) -> dict[str, str]:
    stat = f"anon {anon}\nfile {file}\nshmem {shmem}\n"
    return {"memory.max": f"{limit}\n", "memory.stat": stat}


def v1(limit: str, rss: int = 0, cache: int = 0) -> dict[str, str]:
    stat = f"cache {cache}\nrss 1\ntotal_cache {cache}\ntotal_rss {rss}\ntotal_shmem 0\n"
    return {"memory.limit_in_bytes": f"{limit}\n", "memory.stat": stat}


@pytest.mark.parametrize(
    ("groups", "membership", "expected"),
    [
        ({"": v2("5000", anon=1000, shmem=500, file=9)}, "0::/\n", [(5000, 1500)]),
        ({"": v2("max"), "job": v2("5000", anon=7)}, "0::/job\n", [(5000, 7)]),
        (
            {"job": v2("9000", anon=40), "job/step": v2("max"), "job/step/task": v2("8000", 5)},
            "0::/job/step/task\n",
            [(8000, 5), (9000, 40)],
        ),
        (
            {"memory": v1(V1_UNLIMITED), "memory/job": v1("7000", rss=30), "memory/job/a": v1("9")},
            "5:cpu,cpuacct:/elsewhere\n4:memory,hugetlb:/job/a\n1:name=systemd:/\n0::/\n",
            [(9, 0), (7000, 30), (int(V1_UNLIMITED), 0)],
        ),
        # In a container the membership is often the path on the host, which is not there.
        ({"": v2("5000", anon=3)}, "0::/kubepods/pod7/abc\n", [(5000, 3)]),
        ({"memory": v1("5000", rss=3)}, "4:memory:/docker/abc\n", [(5000, 3)]),
        ({"": v2("5000", anon=3)}, "0::/../../outside\n", [(5000, 3)]),
        # A limit counts even if the use of the group cannot be read.
        ({"": {"memory.max": "5000\n"}}, "0::/\n", [(5000, None)]),
        ({"": {"memory.max": "5000\n", "memory.stat": "damaged\n"}}, "0::/\n", [(5000, None)]),
        # No limit at all.
        ({"": v2("max"), "job": v2("max")}, "0::/job\n", []),
        ({"": {"cpu.max": "max 100000\n"}}, "", []),
        # The limit of a group that this process is not in.
        ({"other": v2("5000")}, "0::/job\n", []),
    ],
)
def test_every_limit_around_this_process_is_found(
    tmp_path: Path, groups: Any, membership: str, expected: list[tuple[int, int | None]]
) -> None:
    tree = make_tree(tmp_path, groups, membership)
    assert tree.limits() == expected


def test_without_cgroups_there_is_no_cgroup_limit(tmp_path: Path) -> None:
    tree = CgroupTree(tmp_path / "none", tmp_path / "none")
    assert tree.limits() == []
    assert find_limit(cgroups=tree).source == "free on this machine"


def test_memory_of_other_processes_is_not_free_and_page_cache_is(tmp_path: Path) -> None:
    own = anonymous_bytes()
    tree = make_tree(tmp_path / "a", {"": v2(str(own + 500 * MB), anon=own + 400 * MB)})
    limit = find_limit(cgroups=tree)
    assert limit.source == CGROUP
    assert limit.free_bytes == pytest.approx(100 * MB, abs=20 * MB)
    files = v2(str(own + 500 * MB), anon=own, file=490 * MB)
    limit = find_limit(cgroups=make_tree(tmp_path / "b", {"": files}))
    assert limit.free_bytes == pytest.approx(500 * MB, abs=20 * MB)


def test_max_memory_gb_lowers_the_limit_and_a_device_has_its_own(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "a", {"": v2(str(300 * MB))})
    assert find_limit(0.2, cgroups=tree) == Limit(200 * MB, "max_memory_gb")
    assert find_limit(0.4, cgroups=tree) == Limit(300 * MB, CGROUP)
    assert find_limit(1e9).source.startswith("free")
    limit = find_limit(0.5, 24, cgroups=tree)
    assert limit == Limit(24 * GB, "device_memory_gb", on_device=True)
    assert limit.free_bytes == 24 * GB - DEVICE_CONTEXT_BYTES
    assert find_limit(0.2, 24, host=True, cgroups=tree) == Limit(200 * MB, "max_memory_gb")
    used = find_limit(cgroups=make_tree(tmp_path / "b", {"": v2(str(5 * MB), anon=MB)}))
    assert (used, used.free_bytes) == (Limit(5 * MB, CGROUP), 0)
    assert str(used) == "0.01 GB (free in this container (cgroup))"


def test_on_cuda_the_device_is_the_limit_and_the_host_can_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (7 * GB, 8 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: GB // 2)
    tree = make_tree(tmp_path, {"": v2(str(300 * MB))})
    device = Limit(7 * GB + GB // 2, "free on the CUDA device", on_device=True)
    assert find_limit(cgroups=tree) == device
    assert device.free_bytes == device.bytes  # the context is not free any more
    assert find_limit(2, cgroups=tree).free_bytes == 2 * GB
    assert find_limit(2, cgroups=tree) == Limit(2 * GB, "max_memory_gb", on_device=True)
    assert find_limit(host=True, cgroups=tree) == Limit(300 * MB, CGROUP)


def test_loaders_stay_within_the_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import partial

    import numpy as np

    from surefit import custom_loop

    np.save(tmp_path / "rows.npy", np.ones((64, 500, 400), np.float32))  # 51 MB

    def limited(limit: int, name: str) -> None:
        tree = make_tree(tmp_path / name, {"": v2(str(limit))})
        monkeypatch.setattr(custom_loop, "find_limit", partial(find_limit, cgroups=tree))

    limited(anonymous_bytes() + 60 * MB, "small")
    with pytest.raises(FindingError) as caught:
        surefit.loaders(tmp_path / "rows.npy", 64, max_memory_gb=12)
    assert CGROUP in caught.value.findings[0].message
    limited(anonymous_bytes() + 10 * GB, "large")
    train, _ = surefit.loaders(tmp_path / "rows.npy", 4, max_memory_gb=12)
    assert next(iter(train))["inputs_embeds"].shape == (4, 500, 400)
