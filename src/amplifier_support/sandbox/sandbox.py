"""Starts the commands of a session under a policy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from amplifier_support.files import is_below
from amplifier_support.sandbox import available
from amplifier_support.sandbox.policy import (
    Confined,
    Level,
    PolicyError,
    SandboxPolicy,
    parse_policy,
)
from amplifier_support.sandbox.session_state import SessionState

if TYPE_CHECKING:
    from amplifier_support.sandbox.enforcement import Enforcement


class SandboxUnavailable(RuntimeError):
    """This machine cannot enforce the policy; the message says what is missing."""

    def __init__(self, missing: str) -> None:
        super().__init__(f"this machine cannot enforce the sandbox: {missing}")
        self.missing = missing


class Sandbox:
    """Starts the commands of one session under a policy.

    Args:
        policy: What commands may do; None for no sandbox.
        folder: The session's working directory.
        hidden: Files and folders they cannot read or change, in addition to known credentials.
        readable: Folders below those that they can read nevertheless.
        plan_files: The files of the session's plan. Namespaces do not hide their folders, and commands
            cannot change them where there are namespaces.
        denied: Patterns for more that they cannot read or change, from the rules of the plan.

    Attributes:
        policy: What commands may do; None for no sandbox.
        written: The folders that they may change, links resolved, without that for temporary files.
        removed: Files of commands that `tidy` has removed.
    """

    def __init__(
        self,
        policy: SandboxPolicy | None,
        *,
        folder: str,
        hidden: Iterable[str] = (),
        readable: Iterable[str] = (),
        plan_files: Iterable[str] = (),
        denied: Iterable[str] = (),
    ) -> None:
        self._set_up(policy, SessionState(folder, hidden, readable, plan_files, denied))

    def _set_up(self, policy: SandboxPolicy | None, shared: SessionState) -> None:
        self.policy = policy
        self._shared = shared
        self.written = tuple(map(shared.resolved, () if policy is None else policy.write))
        self._enforcement: Enforcement | None = None
        self.removed: list[str] = []
        self._number = len(shared.sandboxes)
        shared.sandboxes.append(self)

    # -- policies ------------------------------------------------------------------------

    def with_policy(self, policy: SandboxPolicy | None) -> Sandbox:
        """A sandbox with another policy; closed with this one."""
        other = Sandbox.__new__(Sandbox)
        other._set_up(policy, self._shared)
        return other

    def change(self, policy: SandboxPolicy | None) -> None:
        """Use another policy from the next command on; those that run keep theirs.

        Raises:
            SandboxUnavailable: The machine cannot enforce it.
            PolicyError: One of its folders cannot be used.
        """
        missing = None if policy is None else available.missing(policy)
        if policy is not None and missing is not None and policy.unavailable == "fail":
            raise SandboxUnavailable(missing)
        for place in () if policy is None else policy.write:
            self._shared.resolved(place)
        # What enforces the policy until now is closed with the session.
        before = Sandbox.__new__(Sandbox)
        before.__dict__.update(self.__dict__)
        self._shared.sandboxes.append(before)
        removed = self.removed
        self._set_up(policy, self._shared)
        self.removed = removed

    def policy_with(self, hosts: Sequence[str]) -> SandboxPolicy | None:
        """The policy with more hosts; None if it cannot name hosts, or they are no names or addresses of hosts."""
        network = None if self.policy is None else self.policy.network
        if self.policy is None or network == "all" or not self.has_namespaces:
            return None
        listed = network if isinstance(network, tuple) else ()
        try:
            return parse_policy(
                {**self.policy.as_value(), "network": [*dict.fromkeys((*listed, *hosts))]}
            )
        except PolicyError:
            return None

    def ask_about_hosts(self, file: str, store: Callable[[Sequence[str]], None]) -> None:
        """Find out which hosts commands want: someone can be asked about them.

        Args:
            file: The file in which hosts are kept for later sessions in this folder.
            store: Keeps hosts there.
        """
        self._shared.hosts_file, self._shared.store_hosts = file, store

    @property
    def hosts_file(self) -> str | None:
        """The file in which hosts are kept for later sessions; None if no one is asked about hosts."""
        return self._shared.hosts_file

    def store_hosts(self, hosts: Sequence[str]) -> None:
        """Keep hosts for later sessions in this folder."""
        if self._shared.store_hosts is not None:
            self._shared.store_hosts(hosts)

    def for_commands(self, value: object = None) -> Sandbox:
        """The sandbox for something that will start commands; call it before the first one.

        Args:
            value: A policy of its own, as in a plan; None for this one's.

        Raises:
            PolicyError: It is not a policy.
            SandboxUnavailable: The machine cannot enforce it.
        """
        self._shared.needed = True
        sandbox = self if value is None else self.with_policy(parse_policy(value))
        missing = sandbox.missing
        if sandbox.policy is not None and missing is not None:
            if sandbox.policy.unavailable == "fail":
                self._shared.refused = self._shared.refused or missing
                raise SandboxUnavailable(missing)
            self._shared.without = self._shared.without or missing
        return sandbox

    @property
    def missing(self) -> str | None:
        """The features that this machine lacks to enforce the policy; None if it can, or there is
        no policy.
        """
        return None if self.policy is None else available.missing(self.policy)

    @property
    def enforced(self) -> bool:
        """True if commands are restricted."""
        return self.policy is not None and self.missing is None

    def describe(self) -> list[str]:
        """Describe the rights of commands, what enforces them, and what it does not cover on this
        machine.
        """
        if self.policy is None:
            return ["commands run without a sandbox", *self._reachable_although_denied()]
        if self.missing is not None:
            return [
                f"commands run without a sandbox: {self.missing}",
                *self._reachable_although_denied(),
            ]
        layers = [available.kernel_layer()]
        if self.has_namespaces:
            layers.append(available.namespace_layer())
        by = " and ".join(layer.detail for layer in layers)
        gaps = [gap for layer in layers for gap in layer.gaps]
        if not self.has_namespaces and sys.platform.startswith("linux"):
            gaps.append(f"{available.WITHOUT_NAMESPACES} ({available.namespace_layer().detail})")
            if self.policy.network != "none":
                gaps.append(available.WITHOUT_NAMESPACES_BUT_NETWORK)
        lines = [f"{self.policy}; enforced by {by}", *(f"not covered: {gap}" for gap in gaps)]
        lines += self._reachable_although_denied()
        return lines + self.missing_folders + self.closed_folders

    def _reachable_although_denied(self) -> list[str]:
        """Return the possible uses of files that rules deny, each as a sentence."""
        if not self._shared.denied:
            return []
        patterns = ", ".join(self._shared.denied)
        if not self.enforced:
            return [f"commands that run without approval can reach what rules deny: {patterns}"]
        return [
            f"not covered: copies in git of what rules deny ({patterns}), and what they match only later",
            *(
                f"not covered: {pattern!r}, which a rule denies: there are too many files to search"
                for pattern in self._shared.unsearched
            ),
        ]

    @property
    def missing_folders(self) -> list[str]:
        """The folders of the policy that commands cannot use, each as a sentence for the user."""
        if self.policy is None or not self.enforced:
            return []
        existing = [path for path in self.written if os.path.isdir(path)]
        return [
            f"commands cannot write to {place!r} of 'write' in the sandbox: {path!r} "
            + ("is not a folder" if os.path.exists(path) else "does not exist; create it first")
            for place, path in zip(self.policy.write, self.written, strict=True)
            if not any(is_below(path, folder) for folder in existing)
        ]

    @property
    def closed_folders(self) -> list[str]:
        """The writable folders in which nothing can be created, each as a sentence with the reason.

        Landlock permits what is in a folder or all below it, so it cannot leave out a hidden part.
        """
        if not self.enforced or self.has_namespaces or not sys.platform.startswith("linux"):
            return []
        reasons: dict[str, str] = {}
        for path in filter(os.path.lexists, self._shared.hidden):
            folder = os.path.dirname(path)
            while any(is_below(folder, root) for root in self.written):
                reasons.setdefault(folder, path)
                folder = os.path.dirname(folder)
        return [
            f"commands can create and remove nothing directly in {folder!r}, because they must not "
            f"reach {path!r} and this machine has no namespaces"
            for folder, path in reasons.items()
        ]

    @property
    def limits(self) -> str | None:
        """The limits of commands, as a sentence for a model; None if they are not restricted."""
        policy = self.policy
        if policy is None or not self.enforced:
            return None
        places = ["the working directory" if path == "." else path for path in policy.write]
        network = ", and have no network" if policy.network == "none" else ""
        if isinstance(policy.network, tuple):
            network = f", and reach only these hosts: {', '.join(policy.network)}"
        where = " and ".join([", ".join(places), "$TMPDIR"] if places else ["$TMPDIR"])
        closed = "".join(f" {line[0].upper()}{line[1:]}." for line in self.closed_folders)
        if self._shared.denied:
            closed += f" What rules deny is empty or unreadable: {', '.join(self._shared.denied)}."
        private = "$TMPDIR" if "/tmp" in policy.write else "$TMPDIR and /tmp"
        return (
            f"Commands run in a sandbox: they change files only in {where}{network}. Only commands see "
            f"their files in {private}, which are removed when the session ends.{closed}"
        )

    @property
    def plan_files(self) -> tuple[str, ...]:
        """The files of the session's plan, links resolved."""
        return self._shared.plan_files

    @property
    def needed(self) -> bool:
        """True if something will start commands."""
        return self._shared.needed

    @property
    def used(self) -> Level | None:
        """The layer that commands of the session have run in; None if none was restricted."""
        return self._shared.used

    @property
    def refused(self) -> str | None:
        """The missing features when something asked for a policy that must be enforced."""
        return self._shared.refused

    @property
    def goes_without(self) -> str | None:
        """The missing features when something asked for a policy that need not be enforced."""
        return self._shared.without

    # -- commands ------------------------------------------------------------------------

    def confine(self, argv: Sequence[str], environment: Mapping[str, str]) -> Confined:
        """Return the way to start a command under the policy.

        Raises:
            SandboxUnavailable: The machine cannot enforce the policy.
            OSError: The temporary folder or the rules cannot be created.
        """
        policy, missing = self.policy, self.missing
        if policy is None or (missing is not None and policy.unavailable == "warn"):
            return Confined(argv, environment, None)
        if missing is not None:
            raise SandboxUnavailable(missing)
        self._shared.used = "namespaces" if self.has_namespaces else "kernel"
        return self._open_enforcement(policy).confine(argv, environment)

    @property
    def has_namespaces(self) -> bool:
        """True if commands get namespaces of their own; found out by trying, at first use."""
        return self.enforced and available.namespace_layer().works

    def view(self, needed: frozenset[str]) -> bytes | None:
        """Return the input of the program that starts commands, to make namespaces; None without
        namespaces.

        Args:
            needed: Paths that its commands need to start.

        Raises:
            OSError: The temporary folder cannot be created.
        """
        if self.policy is None or not self.has_namespaces:
            return None
        return self._open_enforcement(self.policy).view(needed)

    def tidy(self) -> None:
        """Remove what commands made although it could run code outside; call it after each one."""
        if self._enforcement is not None:
            self.removed += self._enforcement.tidy()

    def take_made(self) -> list[str]:
        """Return the files made by commands since the last call that run later outside of the
        sandbox, as paths.
        """
        return [] if self._enforcement is None else self._enforcement.take_made()

    async def open_network(self) -> None:
        """Start the proxy for the hosts that the policy names, or that someone is asked about; does nothing without
        any.

        Raises:
            OSError: It cannot be started.
        """
        policy = self.policy
        if policy is not None and self.has_namespaces:
            await self._open_enforcement(policy).open_network()

    def take_refusals(self) -> list[str]:
        """Why hosts were refused since the last call, each as a sentence."""
        return [] if self._enforcement is None else self._enforcement.take_refusals()

    def take_unlisted(self) -> list[str]:
        """Return the hosts that were refused since the last call and could be added to the policy."""
        return [] if self._enforcement is None else self._enforcement.take_unlisted()

    @property
    def temporary_folder(self) -> str | None:
        """The folder for temporary files of commands, created when it is first needed.

        None if commands are not restricted.

        Raises:
            OSError: It cannot be created.
        """
        if self.policy is None or not self.enforced:
            return None
        return self._open_enforcement(self.policy).temporary_folder

    def close(self) -> None:
        """Remove the temporary folder and forget the rules, of all sandboxes of the session."""
        for sandbox in self._shared.sandboxes:
            if sandbox._enforcement is not None:
                sandbox._enforcement.close()
        private, self._shared.private = self._shared.private, None
        if private is not None:
            private.remove()

    def _open_enforcement(self, policy: SandboxPolicy) -> Enforcement:
        if self._enforcement is None:
            # Only sessions that run commands need it.
            from amplifier_support.sandbox.enforcement import Enforcement

            self._enforcement = Enforcement(policy, self.written, self._shared, self._number)
        return self._enforcement
