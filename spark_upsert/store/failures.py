"""Errors of object storage (`translate`): no such object, refused by the server, or failed for now.

obstore does not always distinguish them by class; only this module reads its messages.
"""

from __future__ import annotations

import re

from obstore.exceptions import (
    AlreadyExistsError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from spark_upsert.errors import OptionError, StorageError

_TEXT_LENGTH_MAX = 400

_NO_BUCKET = re.compile(
    r"NoSuchBucket|ContainerNotFound|FilesystemNotFound|bucket does not exist", re.IGNORECASE
)
_NO_IDENTITY = re.compile(
    r"169\.254\.|metadata\.google|token request|credential error", re.IGNORECASE
)
_BAD_IDENTITY = re.compile(
    r"<Code>(ExpiredToken|TokenRefreshRequired|InvalidToken|AuthenticationFailed|InvalidAccessKeyId"
    r"|XAdminUserNotFound)</Code>"
)
"""Codes of credentials that a server does not accept.

The Versity gateway sends the last one with status 404: the account is absent, and not an object.
"""
_OTHER_REGION = re.compile(
    r"incorrectly configured region|AuthorizationHeaderMalformed|PermanentRedirect"
)
_NO_TLS = re.compile(r"HTTP error: builder error")
"""The client's text about an ``http://`` address of the environment, which is not allowed."""

_CONFLICT = "ConditionalRequestConflict"


def translate(error: Exception, *, verb: str, url: str) -> Exception:
    """Return the error to raise for one of obstore's.

    `FileNotFoundError`: no such object. `OptionError`: the server refuses, so only other options
    help. `StorageError`: it failed now, and the request may have taken effect or not.
    """
    text = str(error).split("\n\nDebug source")[0]
    status = _status(text)
    tried = f"could not {verb} '{url}': {_brief(text)}"
    is_nobody = _BAD_IDENTITY.search(text) is not None
    is_absent = not is_nobody and (isinstance(error, FileNotFoundError) or status == 404)
    # Only reading and deleting need an object: anything else can miss nothing but the bucket.
    if _NO_BUCKET.search(text) or (is_absent and verb not in ("read", "delete")):
        return OptionError(
            tried,
            hint="make the bucket, or check the 'path' and 'storage.endpoint' options: this "
            "package never makes buckets.",
            option="path",
        )
    if is_absent:
        return FileNotFoundError(f"there is no object '{url}'")
    if _NO_IDENTITY.search(text):
        return OptionError(
            tried,
            hint="give credentials by 'storage' options (docs/object-stores.md names those of each "
            "cloud), or by the environment of the driver and of every executor.",
            option="storage",
        )
    if _NO_TLS.search(text):
        return OptionError(
            tried,
            hint="an endpoint of the environment that begins with http:// needs "
            "'storage.allow_http' = 'true'.",
            option="storage.allow_http",
        )
    if _OTHER_REGION.search(text):
        return OptionError(
            tried,
            hint="set 'storage.region' to the region of the bucket.",
            option="storage.region",
        )
    is_denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
    if is_nobody or is_denied or status in (401, 403):
        return OptionError(
            tried,
            hint="check the credentials among the 'storage' options and in the environment, and "
            "that they allow to get, put, delete and list below the path. Without the right to "
            "list, S3 denies access to objects that do not exist.",
            option="storage",
        )
    if isinstance(error, NotSupportedError | NotImplementedError) or status == 501:
        return OptionError(
            tried,
            hint="use a storage that can put an object only if it is absent (If-None-Match); "
            "commits depend on it.",
            option="path",
        )
    return StorageError(
        tried,
        hint="check 'storage.endpoint' and the network, then try again; 'storage.max_retries' and "
        "'storage.retry_timeout' say how long to be patient.",
        status=status,
        url=url,
    )


def is_conflict(error: Exception) -> bool:
    """Return whether S3 refused only because another request for the key was under way."""
    return isinstance(error, AlreadyExistsError) and _CONFLICT in str(error)


def is_cut_short(error: StorageError) -> bool:
    """Return whether the body of an answer ended early, for which the client does not ask again.

    It does for the bodies of objects, not for that of "there is no such object".
    """
    return "response body error" in error.message


def may_pass(error: StorageError) -> bool:
    """Return whether repeating the request can help: no answer came, or the server is at fault."""
    status = error.fields.get("status")
    return status is None or status >= 500 or status in (408, 409, 429)


def _status(text: str) -> int | None:
    match = re.search(r"status code: (\d{3})", text)
    return int(match[1]) if match else None


def _brief(text: str) -> str:
    """Return what is of use to a reader; without queries, which may hold a signature."""
    match = re.search(
        r"status code: (\d{3}[^:]*).*?<Code>([^<]*)</Code>(?:.*?<Message>([^<]*)</Message>)?",
        text,
        re.DOTALL,
    )
    if match:
        status, code, message = match.groups()
        words = " ".join((message or "").split())
        return f"the server answered {status}, {code}" + (f": {words}" if words else "")
    plain = re.sub(r"(https?://[^\s?]+)\?\S+", r"\1?...", " ".join(text.split()))
    return plain if len(plain) <= _TEXT_LENGTH_MAX else f"{plain[:_TEXT_LENGTH_MAX]}..."
