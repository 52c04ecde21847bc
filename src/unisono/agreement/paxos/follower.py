"""A follower's side of one leader's time: what it has accepted under the leader's ballot, and what came too early."""

from __future__ import annotations

from unisono.agreement.paxos.acceptor import Acceptor
from unisono.agreement.paxos.messages import Accept

_NOTHING = (0, b"")


class FollowerState:
    """`upto` is how far everything from the leader's base on has been accepted under its ballot."""

    def __init__(self, acceptor: Acceptor, accept: Accept, *, two_are_majority: bool) -> None:
        """`two_decide` if the leader, who had accepted what it sent, and this member are a majority."""
        self.ballot = accept.ballot
        self.accepted_upto = accept.base - 1
        self._acceptor, self._two_are_majority = acceptor, two_are_majority
        self._early: dict[int, bytes] = {}

    def accept_values(self, accept: Accept, window: int) -> None:
        """Accept values, in order; take for decided what the leader says is, as far as it is here."""
        acceptor, ballot = self._acceptor, self.ballot
        for k, value in enumerate(accept.values, accept.first):
            if k <= acceptor.last_accepted + 1:
                if k > acceptor.decided and acceptor.log.get(k, _NOTHING)[0] != ballot:
                    acceptor.accept(k, ballot, value)
            elif k <= acceptor.last_accepted + window:
                self._early[k] = value
        while (early := self._early.pop(acceptor.last_accepted + 1, None)) is not None:
            acceptor.accept(acceptor.last_accepted + 1, ballot, early)
        # What is decided counts as accepted: no ballot can have another value for it.
        self.accepted_upto = max(self.accepted_upto, acceptor.decided)
        while acceptor.log.get(self.accepted_upto + 1, _NOTHING)[0] == ballot:
            self.accepted_upto += 1
        # Below the base, what was accepted here may be another leader's, and not what was decided: that is fetched.
        decided = self.accepted_upto if self._two_are_majority else min(accept.decided, self.accepted_upto)
        if acceptor.decided >= accept.base - 1 and decided > acceptor.decided:
            acceptor.decide(decided)
