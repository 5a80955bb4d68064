/** Buttons: with words, or with an icon and a name. */

import type { ButtonHTMLAttributes, ReactNode, Ref } from "react";

import styles from "./button.module.css";

interface ButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  readonly look?: "primary" | "plain" | "quiet" | "danger";
  readonly size?: "small" | "normal";
  /** Something is under way: it cannot be pressed, and says so. */
  readonly busy?: boolean;
  readonly ref?: Ref<HTMLButtonElement>;
}

export function Button({ look = "plain", size = "normal", busy = false, ...rest }: ButtonProps): ReactNode {
  const { className = "", disabled, type = "button", ...others } = rest;
  return (
    <button
      {...others}
      type={type}
      className={`${styles.button} ${styles[look]} ${size === "small" ? styles.small : ""} ${className}`}
      disabled={disabled || busy}
      aria-busy={busy || undefined}
    />
  );
}

interface IconButtonProps extends Omit<ButtonProps, "aria-label"> {
  /** What it does, for those who do not see the icon, and shown when the pointer rests on it. */
  readonly label: string;
}

export function IconButton({ label, look = "quiet", className = "", ...rest }: IconButtonProps): ReactNode {
  return <Button {...rest} look={look} aria-label={label} title={label} className={`${styles.icon} ${className}`} />;
}
