"""Request and response schemas. Those of a task follow from its predictor's fields and result type."""

from typing import Annotated, Any, Generic, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model, model_validator

from debertakit.inference.predictor import InputField, Predictor, Result
from debertakit.serving.limits import Limits

R = TypeVar("R")


MOST_FIELDS = 20
"""An object with more fields is refused at once. Listing 90,000 unknown fields as errors takes a second."""


def _is_unicode(text: str) -> str:
    """JSON can express half of a surrogate pair ("\\ud800"), which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains a lone surrogate, which is not a Unicode character") from None
    return text


Text = Annotated[str, AfterValidator(_is_unicode)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > MOST_FIELDS:
            raise ValueError(f"{len(given)} fields; at most {MOST_FIELDS}")
        return given


class PredictRequest(Strict):
    inputs: list[BaseModel] = Field(min_length=1)
    model: Text | None = Field(None, description="A name from /models. Default: the first model for this task.")


class PredictResponse(BaseModel, Generic[R]):
    model: str
    results: list[R]


class Problem(BaseModel):
    error: str


class Readiness(BaseModel):
    ready: bool
    not_ready: list[str] = Field(description="Models whose worker does not run.")


class ExplainRequest(Strict):
    model: Text
    text: Text = Field(max_length=2000)
    against: Text | None = Field(None, description="A second model to compare.")


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
    languages: list[str] = Field(description="Languages that the model's vocabulary covers, of en and zh.")
    mask: str | None = Field(None, description="The mask token, if the task fills masks.")


def request_type(predictor: type[Predictor[Result]], limits: Limits) -> type[PredictRequest]:
    replaceable = {field.instead_of for field in predictor.fields}
    fields = {
        field.name: _field(field, field.required and field.name not in replaceable, limits)
        for field in predictor.fields
    }
    item = create_model(f"{predictor.__name__}Input", __base__=Strict, **fields)  # type: ignore[call-overload]
    # fail_fast: a list of 500,000 wrong inputs would take 15 seconds to list as errors
    inputs = (list[item], Field(min_length=1, max_length=limits.inputs, fail_fast=True))  # type: ignore[valid-type]
    return create_model(f"{predictor.__name__}Request", __base__=PredictRequest, inputs=inputs)


def _field(field: InputField, required: bool, limits: Limits) -> tuple[object, object]:
    """Type and description of a field, as ``create_model`` takes them."""
    kind: object = Text if field.holds == "text" else list[Text]
    return (
        kind if required else kind | None,  # type: ignore[operator]
        Field(
            ... if required else None,
            min_length=None if field.holds == "text" else field.at_least,
            max_length=limits.choices if field.holds == "choices" else None,
            fail_fast=None if field.holds == "text" else True,
            description=f"Replaces {field.instead_of}." if field.instead_of else None,
            examples=[field.example] if field.example else None,
        ),
    )


def response_type(predictor: type[Predictor[Result]]) -> type[PredictResponse[Result]]:
    """``Predictor[R]`` answers with results of type R."""
    (result,) = get_args(predictor.__orig_bases__[0])  # type: ignore[attr-defined]
    return PredictResponse[result]  # type: ignore[valid-type]
