"""Monitoring: meters at layer boundaries, and the evaluation of service level agreements (paper 002 §2.4, §4).

`meters` counts the traffic across each layer boundary, `sla_evaluation` compares windows of metrics with SLAs, and
`observer` applies both to one member's stack.
"""
