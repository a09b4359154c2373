//! networks, routes and link loads.
