//! the control state machine and its runtime.
