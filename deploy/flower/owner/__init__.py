"""The owner's side of a node: its policy, the rules that are checked, pinned code, admission."""
