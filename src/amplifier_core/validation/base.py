"""The published names of the checks' common parts."""

from amplifier_core import loader
from amplifier_core.module_checks import Severity as Severity
from amplifier_core.module_checks import ValidationCheck as ValidationCheck
from amplifier_core.module_checks import check_on_session_ready as check_on_session_ready
from amplifier_core.module_checks import is_async as is_async
from amplifier_core.module_checks import positional_arity as positional_arity
from amplifier_kit.validation.validators import CheckReport as CheckReport
from amplifier_kit.validation.validators import ValidationResult as ValidationResult

import_module_from_path = loader.import_from_path
