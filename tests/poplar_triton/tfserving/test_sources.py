"""Which versions are served, and what requests for other versions get."""

import re
from pathlib import Path

import pytest
from poplar_triton.tfserving.models import Code, ModelSpec, ServingError
from poplar_triton.tfserving.settings import (
    ModelSource,
    VersionPolicy,
    find_version,
    not_known,
    not_served,
)


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        (VersionPolicy(), {10}),
        (VersionPolicy(latest=2), {9, 10}),
        (VersionPolicy(latest=9), {1, 2, 9, 10}),
        (VersionPolicy(latest=None), {1, 2, 9, 10}),
        (VersionPolicy(specific=frozenset({2, 3})), {2}),
        (VersionPolicy(latest=None, specific=frozenset({3})), set()),
    ],
)
def test_policies_choose_among_the_versions_that_are_there(policy, chosen):
    assert policy.choose([2, 10, 1, 9]) == chosen
    assert policy.choose([]) == set()


def test_without_a_policy_it_is_the_configurations_to_say():
    assert ModelSource("m", Path("m")).policy is None


def test_a_request_may_name_a_version_or_a_label_or_neither():
    labels = {"stable": 3}
    assert find_version(ModelSpec("m"), labels) is None
    assert find_version(ModelSpec("m", version=0), labels) == 0
    assert find_version(ModelSpec("m", label="stable"), labels) == 3


@pytest.mark.parametrize("label", ["", "canary", "3"])
def test_an_unknown_label_is_rejected(label):
    words = f"Unrecognized servable version label: {label}"
    with pytest.raises(ServingError, match=re.escape(words)) as refused:
        find_version(ModelSpec("m", label=label), {"stable": 3})
    assert refused.value.code is Code.INVALID_ARGUMENT


def test_missing_versions_are_named_in_tensorflow_servings_words():
    spec = ModelSpec("m")
    for error, words in (
        (not_served(spec, None), "Servable not found for request: Latest(m)"),
        (not_served(spec, 0), "Servable not found for request: Specific(m, 0)"),
        (not_known(spec, None), "Could not find any versions of model m"),
        (not_known(spec, 4), "Could not find version 4 of model m"),
    ):
        assert (error.code, str(error)) == (Code.NOT_FOUND, words)
