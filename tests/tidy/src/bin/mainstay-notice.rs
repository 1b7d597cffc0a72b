//! Prints the licences of everything that is linked into the binary, for packages and archives.
#![allow(clippy::print_stdout)]

fn main() -> anyhow::Result<()> {
    print!("{}", mainstay_tidy::notice::notice()?);
    Ok(())
}
