"""Agreement among members: Paxos, membership with virtual synchrony, failure detection, numbering of members."""
