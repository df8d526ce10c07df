//! The options for what devices require: one for each entry of the software HCA's table.

use barewire_hca::{REQUIREMENTS, REQUIREMENTS_VARIABLE, Requirements, RequirementsError};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

const ALL: &str = "require-all";

/// What devices require, as `BAREWIRE_HCA_REQUIRE` describes it.
#[derive(Debug)]
pub(crate) struct Required(pub(crate) Requirements);

impl FromArgMatches for Required {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut parts = Vec::new();
        if matches.get_flag(ALL) {
            parts.push("all".to_owned());
        }
        for requirement in REQUIREMENTS {
            let name = requirement.name;
            if requirement.example.is_empty() {
                parts.extend(matches.get_flag(name).then(|| name.to_owned()));
            } else if let Some(value) = matches.get_one::<String>(name) {
                parts.push(format!("{name}={value}"));
            }
        }
        // Without options, the environment variable counts.
        if parts.is_empty() {
            parts.extend(std::env::var(REQUIREMENTS_VARIABLE));
        }
        parts.join(",").parse().map(Self).map_err(|error: RequirementsError| {
            clap::Error::raw(ErrorKind::ValueValidation, format!("{error}\n"))
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Required {
    fn augment_args(command: Command) -> Command {
        let all = Arg::new(ALL).long(ALL).action(ArgAction::SetTrue);
        let command = command
            .arg(all.help("Require everything that a driver can meet, with examples of values; most verbs programs cannot, because of --relaxed-only"));
        REQUIREMENTS.iter().fold(command, |command, requirement| {
            let arg = Arg::new(requirement.name).long(requirement.name).help(requirement.effect);
            command.arg(if requirement.example.is_empty() {
                arg.action(ArgAction::SetTrue)
            } else {
                arg.value_name(requirement.example)
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(options: &[&str]) -> Result<Required, clap::Error> {
        let command = Required::augment_args(Command::new("run").no_binary_name(true));
        Required::from_arg_matches(&command.try_get_matches_from(options)?)
    }

    #[test]
    fn every_requirement_is_an_option() {
        for requirement in REQUIREMENTS {
            let option = format!("--{}", requirement.text());
            let required = parsed(&[&option]).unwrap();
            assert_eq!(required.0, requirement.text().parse().unwrap());
            assert_ne!(required.0, Requirements::default(), "{option}");
        }
        assert_eq!(parsed(&["--require-all"]).unwrap().0, "all".parse().unwrap());
        assert_eq!(parsed(&[]).unwrap().0, Requirements::default());
    }

    #[test]
    fn a_wrong_value_is_named() {
        let error = parsed(&["--mtu=300"]).unwrap_err().to_string();
        assert!(error.contains("the value of 'mtu'"), "{error}");
    }
}
