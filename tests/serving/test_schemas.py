"""Every predictor's HTTP schema follows from its fields."""

import pydantic
import pytest

from debertakit.inference.classify import ZeroShotClassifier
from debertakit.inference.tag import EntityTagger
from debertakit.inference.tasks import PREDICTORS
from debertakit.serving.limits import Limits
from debertakit.serving.schemas import request_type, response_type


@pytest.mark.parametrize("task", PREDICTORS)
def test_the_example_of_each_predictor_is_a_valid_request(task):
    predictor = PREDICTORS[task]
    example = {field.name: field.example for field in predictor.fields if field.example}
    assert {field.name for field in predictor.fields if field.required} <= example.keys()
    for field in predictor.fields:
        if field.name in example:
            field.check(example[field.name])
    request = request_type(predictor, Limits())
    assert (
        request.model_validate({"inputs": [example]}).inputs[0].model_dump(exclude_none=True).keys() == example.keys()
    )
    with pytest.raises(pydantic.ValidationError, match="unknown"):
        request.model_validate({"inputs": [{**example, "unknown": 1}]})
    assert "results" in response_type(predictor).model_json_schema()["properties"]


def test_limits_and_replaceable_fields():
    request = request_type(ZeroShotClassifier, Limits(choices=2))
    request.model_validate({"inputs": [{"text": "a", "labels": ["b", "c"]}]})
    for labels in ([], ["b", "c", "d"]):
        with pytest.raises(pydantic.ValidationError, match="labels"):
            request.model_validate({"inputs": [{"text": "a", "labels": labels}]})
    request_type(EntityTagger, Limits()).model_validate({"inputs": [{"words": ["a"]}]})
