"""Parts that several orders share: formation, packing, modes, receive queue, order over consensus."""
