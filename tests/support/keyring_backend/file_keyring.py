"""A keyring that a test can look into; found by the `keyring` library of a child process.

The child needs this folder on PYTHONPATH, PYTHON_KEYRING_BACKEND=file_keyring.FileKeyring, and
FILE_KEYRING naming a file. It is locked while a file of that name with `.locked` exists.
"""

import json
import os
from pathlib import Path
from typing import Any

from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked, PasswordDeleteError


class FileKeyring(KeyringBackend):
    priority: Any = 5

    @property
    def file(self) -> Path:
        return Path(os.environ["FILE_KEYRING"])

    def _entries(self) -> dict[str, dict[str, str]]:
        with self.file.with_name(self.file.name + ".asked").open("a") as asked:
            asked.write(".")
        if self.file.with_name(self.file.name + ".locked").exists():
            raise KeyringLocked("the collection is locked")
        return json.loads(self.file.read_text()) if self.file.exists() else {}

    def get_password(self, service: str, username: str) -> str | None:
        return self._entries().get(service, {}).get(username)

    def set_password(self, service: str, username: str, password: str) -> None:
        entries = self._entries()
        entries.setdefault(service, {})[username] = password
        self.file.write_text(json.dumps(entries))

    def delete_password(self, service: str, username: str) -> None:
        entries = self._entries()
        if username not in entries.get(service, {}):
            raise PasswordDeleteError(username)
        del entries[service][username]
        self.file.write_text(json.dumps(entries))
