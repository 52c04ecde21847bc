"""Multi-Paxos: `consensus` is the automaton, `acceptor` its durable log, `messages` its frames and stored records."""
