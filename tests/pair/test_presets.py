"""The switch: what each preset is, what an unset one becomes, and what is refused."""

import pytest
import torch

from lessonlib.errors import LessonError
from lessonlib.pair import presets
from lessonlib.pair.presets import preset


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in ("PRESET", "TARGET", "DRAFT", "PROMPTS"):
        monkeypatch.delenv(f"LESSON_{name}", raising=False)


@pytest.fixture
def gpu(monkeypatch):
    return lambda gb: monkeypatch.setattr(presets, "gpu_gb", lambda: gb)


@pytest.mark.parametrize("gb, name, device", [(0.0, "tiny", "cpu"), (16.0, "tiny", "cuda"), (128.0, "spark", "cuda")])
def test_unset_takes_what_the_machine_can_do(gpu, gb, name, device):
    gpu(gb)
    found = preset()
    assert (found.name, found.device) == (name, device)
    assert found.dtype == (torch.bfloat16 if name == "spark" else torch.float32)
    line = str(found)
    assert "\n" not in line and "unset" in line
    assert f"preset {name}" in line and f"on {device} in {str(found.dtype)[6:]}" in line
    assert ("no CUDA GPU" if gb == 0 else f"{gb:.0f} GB") in line


def test_this_machine_has_a_preset():
    assert preset().name in ("tiny", "spark")


def test_the_variable_and_the_argument(gpu, monkeypatch):
    gpu(128.0)
    monkeypatch.setenv("LESSON_PRESET", "tiny")
    assert preset().name == "tiny" and "LESSON_PRESET" in preset().reason
    assert preset("spark-open").name == "spark-open" and "asked for" in preset("spark-open").reason


@pytest.mark.parametrize("gb", [0.0, 24.0])
@pytest.mark.parametrize("name", ["spark", "spark-open"])
def test_spark_without_its_gpu_is_refused(gpu, gb, name):
    gpu(gb)
    with pytest.raises(LessonError, match="LESSON_PRESET=tiny"):
        preset(name)


def test_an_unknown_name_is_refused():
    with pytest.raises(LessonError, match="tiny, spark, spark-open, custom"):
        preset("huge")


def test_custom_takes_a_pair_and_prompts(gpu, monkeypatch):
    gpu(0.0)
    with pytest.raises(LessonError, match="LESSON_DRAFT, LESSON_PROMPTS, LESSON_TARGET"):
        preset("custom")
    monkeypatch.setenv("LESSON_TARGET", "models/big")
    monkeypatch.setenv("LESSON_DRAFT", "models/small")
    found = preset("custom", prompts="mine.jsonl", draft="models/other")
    assert (found.target, found.draft, found.prompts, found.device, found.dtype) == \
        ("models/big", "models/other", "mine.jsonl", "cpu", torch.float32)
    with pytest.raises(LessonError, match="LESSON_PRESET=custom"):
        preset("tiny")


def test_a_local_copy_of_the_spark_pair(gpu):
    gpu(128.0)
    found = preset("spark", target="/models/8B")
    assert (found.target, found.draft) == ("/models/8B", "meta-llama/Llama-3.2-1B-Instruct")


def test_spark_sees_about_two_million_tokens_twice():
    spark = presets.SPARK
    epochs = spark.train_steps * spark.batch_size / spark.train_prompts
    assert epochs == 2 and spark.train_prompts * spark.max_new_tokens > 2e6
