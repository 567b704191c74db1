"""What a server says, and what becomes of it. The texts are those of real servers."""

from __future__ import annotations

import pickle

import pytest
from obstore.exceptions import (
    AlreadyExistsError,
    GenericError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from spark_upsert.errors import OptionError, StorageError
from spark_upsert.store.object_store import is_conflict, may_pass, translate

URL = "s3://bucket/table/_log/0.json"


def answer(status: str, code: str = "") -> str:
    """Return the text of a failed request, as obstore has it."""
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code></Error>'
    return (
        "Generic S3 error: Error performing GET https://host/bucket/table?sig=hush&se=1 in 5ms"
        f" - Server returned non-2xx status code: {status}: {body if code else ''}"
        "\n\nDebug source:\nGeneric {\n    store: hush,\n}"
    )


NO_TOKEN = (
    "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token "
    "in 900ms - HTTP error: error sending request"
)
NO_TLS = (
    "Generic S3 error: Error performing list request: Error performing GET "
    "http://127.0.0.1:9000/lake?list-type=2 in 25us - HTTP error: builder error"
)
ELSEWHERE = (
    "Generic S3 error: Received redirect without LOCATION, this normally indicates an "
    "incorrectly configured region"
)
CREDENTIALS = (
    FileNotFoundError(answer("404 Not Found", "XAdminUserNotFound")),  # Of the Versity gateway.
    PermissionDeniedError(answer("403 Forbidden", "SignatureDoesNotMatch")),
    GenericError(answer("403 Forbidden", "AccessDenied")),
    UnauthenticatedError(answer("401 Unauthorized")),
    GenericError(answer("400 Bad Request", "ExpiredToken")),
)
BUCKETS = (
    FileNotFoundError(answer("404 Not Found", "NoSuchBucket")),
    GenericError(answer("404 Not Found", "NoSuchBucket")),
    FileNotFoundError(answer("404 The specified container", "ContainerNotFound")),
)


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        (FileNotFoundError(answer("404 Not Found", "NoSuchKey")), FileNotFoundError, None),
        *((error, OptionError, "make the bucket") for error in BUCKETS),
        *((error, OptionError, "check the credentials") for error in CREDENTIALS),
        (GenericError(NO_TOKEN), OptionError, "give credentials"),
        (GenericError(NO_TLS), OptionError, "storage.allow_http"),
        (
            GenericError(answer("400 Bad Request", "AuthorizationHeaderMalformed")),
            OptionError,
            "storage.region",
        ),
        (GenericError(ELSEWHERE), OptionError, "storage.region"),
        (
            NotSupportedError("Operation not supported: conditional put"),
            OptionError,
            "If-None-Match",
        ),
        (
            GenericError(answer("501 Not Implemented", "NotImplemented")),
            OptionError,
            "If-None-Match",
        ),
        (
            GenericError(answer("503 Service Unavailable", "SlowDown")),
            StorageError,
            "storage.max_retries",
        ),
        (
            GenericError("Generic S3 error: HTTP error: error sending request"),
            StorageError,
            "storage.endpoint",
        ),
    ],
)
def test_each_failure_has_its_remedy(error: Exception, kind: type, hint: str | None) -> None:
    translated = translate(error, verb="read", url=URL)
    assert type(translated) is kind
    assert URL in str(translated)
    if hint is not None:
        assert isinstance(translated, OptionError | StorageError)
        assert hint in translated.hint


@pytest.mark.parametrize("verb", ["create", "write", "list"])
def test_what_needs_no_object_can_miss_the_bucket_only(verb: str) -> None:
    error = translate(FileNotFoundError(answer("404 Not Found")), verb=verb, url=URL)
    assert isinstance(error, OptionError)
    assert "make the bucket" in error.hint


def test_a_message_has_the_words_of_the_server_without_signatures_and_structures() -> None:
    text = answer("403 Forbidden", "AccessDenied").replace(
        "</Error>", "<Message>Go\n away</Message>"
    )
    error = translate(PermissionDeniedError(text), verb="read", url=URL)
    assert f"read '{URL}': the server answered 403 Forbidden, AccessDenied: Go away" in str(error)
    assert "hush" not in str(error)
    long = translate(GenericError("x" * 10_000), verb="read", url=URL)
    assert len(str(long)) < 1000


def test_a_storage_error_is_an_os_error_that_survives_pickle() -> None:
    error = translate(GenericError(answer("503 Slow Down")), verb="read", url=URL)
    assert isinstance(error, OSError)
    assert isinstance(error, StorageError)
    assert "https://host/bucket/table?*** in 5ms" in str(error)
    assert "hush" not in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.fields) == (str(error), {"status": 503, "url": URL})


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("HTTP error: error sending request", True),
        (answer("500 Internal Server Error"), True),
        (answer("503 Slow Down"), True),
        (answer("429 Too Many Requests"), True),
        (answer("409 Conflict"), True),
        (answer("400 Bad Request", "InvalidDigest"), False),
        (answer("416 Range Not Satisfiable"), False),
    ],
)
def test_what_the_server_understood_is_not_repeated(text: str, passes: bool) -> None:
    error = translate(GenericError(text), verb="read", url=URL)
    assert isinstance(error, StorageError)
    assert may_pass(error) is passes


def test_a_conflict_is_not_an_object_that_exists() -> None:
    busy = AlreadyExistsError(answer("409 Conflict", "ConditionalRequestConflict"))
    azure = AlreadyExistsError(answer("409 Conflict", "BlobAlreadyExists"))
    assert is_conflict(busy)
    assert not is_conflict(azure)
    assert isinstance(translate(busy, verb="create", url=URL), StorageError)
