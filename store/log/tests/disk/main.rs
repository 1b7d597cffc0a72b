//! The log on simulated and real disks, through its public interface.
#![cfg(test)]

mod aside;
mod behaviour;
mod common;
mod crashes;
mod damage;
