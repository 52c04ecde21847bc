"""Multi-Paxos: `consensus` is the automaton, `log` its durable log, `messages` its frames and stored records."""
