//! message log, determinants, delivery.
