"""Tests that the original models answer the demonstrations' inputs as a person would."""

from __future__ import annotations

import numpy as np
import pytest
from poplar_triton.demo import examples
from poplar_triton.demo.document_orientation import DocumentOrientation
from poplar_triton.demo.example import together
from poplar_triton.demo.magika import Magika
from poplar_triton.demo.sentence_similarity import SentenceSimilarity, cosines
from poplar_triton.demo.text_recognition import LINES, TextRecognition

MODELS = ["magika", "sentence_similarity", "document_orientation", "text_recognition"]


def test_every_model_folder_has_a_demonstration(repository):
    assert sorted(example.model for example in examples(repository)) == sorted(
        path.parent.name for path in repository.glob("*/recipe.json")
    )


@pytest.mark.parametrize("model", MODELS)
def test_each_case_has_a_row_and_an_answer_for_each_subject(repository, reference, model):
    (example,) = (example for example in examples(repository) if example.model == model)
    for case in example.cases():
        assert {array.shape[0] for array in case.inputs.values()} == {case.rows}
        assert example.describe(reference(model).run(case), case)


@pytest.mark.parametrize("model", MODELS)
def test_rows_are_answered_alike_alone_and_together(repository, reference, model):
    (example,) = (example for example in examples(repository) if example.model == model)
    cases = example.cases()
    apart = [reference(model).run(case) for case in cases]
    for name, whole in reference(model).run(together(cases)).items():
        np.testing.assert_allclose(
            np.concatenate([output[name] for output in apart]), whole, atol=1e-4
        )


def test_magika_tells_the_kind_of_each_file(repository, reference):
    example = Magika(repository / "magika")
    case = together(example.cases())
    answers = example.decide(reference("magika").run(case))
    assert answers == ["python", "elf", "zip", "png", "json", "markdown"]


def test_sentences_that_mean_the_same_are_nearer_than_others(repository, reference):
    example = SentenceSimilarity(repository / "sentence_similarity")
    meal, weather, cat = (
        cosines(reference(example.model).run(case)["embedding"]) for case in example.cases()
    )
    assert min(meal[0, 1], weather[0, 1], cat[0, 1]) > 0.5
    assert max(meal[0, 2], meal[1, 2], cat[0, 2], cat[1, 2]) < 0.2


def test_padding_does_not_move_an_embedding(repository, reference):
    example = SentenceSimilarity(repository / "sentence_similarity")
    (case, *_) = example.cases()
    length = int(case.inputs["attention_mask"].sum(axis=1).max())
    short = {name: array[:, :length] for name, array in case.inputs.items()}
    whole = reference(example.model).run(case)["embedding"]
    cut = reference(example.model).run(type(case)(case.title, short, case.subjects))["embedding"]
    np.testing.assert_allclose(cut, whole, atol=1e-5)


def test_the_orientation_of_a_page_is_found_for_all_four_quarters(repository, reference):
    example = DocumentOrientation(repository / "document_orientation")
    case = together(example.cases())
    assert example.decide(reference(example.model).run(case)) == ["0", "90", "180", "270"]


def test_every_line_of_text_is_read_as_it_was_set(repository, reference):
    example = TextRecognition(repository / "text_recognition")
    case = together(example.cases())
    assert example.decide(reference(example.model).run(case)) == list(LINES)
