//! The log on simulated and real disks, through its public interface.
#![cfg(test)]

mod behaviour;
mod common;
mod crashes;
mod damage;
