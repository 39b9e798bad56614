"""Request and response schemas. Those of a task follow from its predictor's fields and result type."""

from typing import Generic, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, create_model

from debertakit.inference.predictor import InputField, Predictor, Result
from debertakit.serving.limits import Limits

R = TypeVar("R")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PredictRequest(Strict):
    inputs: list[BaseModel] = Field(min_length=1)
    model: str | None = Field(None, description="A name from /models. Default: the first model for this task.")


class PredictResponse(BaseModel, Generic[R]):
    model: str
    results: list[R]


class Problem(BaseModel):
    error: str


class ExplainRequest(Strict):
    model: str
    text: str = Field(max_length=2000)
    against: str | None = Field(None, description="A second model to compare.")


class FieldInfo(BaseModel):
    name: str
    required: bool
    list: bool = Field(description="Whether the field holds a list of texts instead of one text.")
    example: str | tuple[str, ...]


class ModelInfo(BaseModel):
    name: str
    task: str
    labels: list[str]
    fields: list[FieldInfo] = Field(description="Fields of an input.")
    explains: bool = Field(description="Whether /explain supports the model.")


def request_type(predictor: type[Predictor[Result]], limits: Limits) -> type[PredictRequest]:
    replaceable = {field.instead_of for field in predictor.fields}
    fields = {
        field.name: _field(field, field.required and field.name not in replaceable, limits)
        for field in predictor.fields
    }
    item = create_model(f"{predictor.__name__}Input", __base__=Strict, **fields)  # type: ignore[call-overload]
    inputs = (list[item], Field(min_length=1))  # type: ignore[valid-type]
    return create_model(f"{predictor.__name__}Request", __base__=PredictRequest, inputs=inputs)


def _field(field: InputField, required: bool, limits: Limits) -> tuple[object, object]:
    """Type and description of a field, as ``create_model`` takes them."""
    kind: object = str if field.holds == "text" else list[str]
    return (
        kind if required else kind | None,  # type: ignore[operator]
        Field(
            ... if required else None,
            min_length=None if field.holds == "text" else field.at_least,
            max_length=limits.choices if field.holds == "choices" else None,
            description=f"Replaces {field.instead_of}." if field.instead_of else None,
            examples=[field.example] if field.example else None,
        ),
    )


def response_type(predictor: type[Predictor[Result]]) -> type[PredictResponse[Result]]:
    """``Predictor[R]`` answers with results of type R."""
    (result,) = get_args(predictor.__orig_bases__[0])  # type: ignore[attr-defined]
    return PredictResponse[result]  # type: ignore[valid-type]
