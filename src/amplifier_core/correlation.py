"""The published names of the ids of model calls, see `hooks`."""

from amplifier_core.hooks import CORRELATED_EVENTS as CORRELATED_EVENTS
from amplifier_core.hooks import INTERIM_EVENTS as INTERIM_EVENTS
from amplifier_core.hooks import REQUEST_EVENTS as REQUEST_EVENTS
from amplifier_core.hooks import REQUEST_ID_FIELD as REQUEST_ID_FIELD
from amplifier_core.hooks import TERMINAL_EVENTS as TERMINAL_EVENTS
from amplifier_core.hooks import current_request_id as current_request_id
from amplifier_core.hooks import new_request_id as new_request_id
from amplifier_core.hooks import reset_request_id as reset_request_id
from amplifier_core.hooks import resolve_request_id as resolve_request_id
